"""CrossQ (Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning", arXiv 1902.05605).

CrossQ is SAC without target networks. The critics have batch renormalisation and evaluate (s, a) and (s', a') in one
batch, so that both have the same statistics.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import Batch
from drl_cli.algos.continuous.actors import SquashedPolicy, make_network
from drl_cli.algos.continuous.soft import Random, SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import twin_critics
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Nets
from drl_cli.optim.group import Context
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Natural, Positive

if TYPE_CHECKING:
    from torch import nn

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(SoftConfig):
    """Options of CrossQ."""

    lr: Positive = 1e-3
    alpha_lr: Positive = 1e-3
    actor_period: Count = 3
    momentum: Fraction = 0.01
    warm_up: Natural = 100_000


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""

    has_batch_norm = True


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer."""

    has_batch_norm = True
    has_targets = False

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        if context.optimizer.name in ("adam", "adamw"):
            self.betas = (0.5, 0.999)
        super().__init__(config, network, spec, seed, context)

    def make_networks(self, network: NetworkConfig, spec: EnvSpec) -> "tuple[nn.Module, nn.Module]":
        from drl_cli.networks.batch_renorm import RenormCritics  # imports torch

        critics = RenormCritics(network, spec, 2, self.config.momentum, self.config.warm_up)
        return make_network(network, spec, 2 * spec.action.size), critics

    def critic_loss(self, nets: Nets, batch: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared Bellman error of both critics, from one forward pass of the joined batch (figure 1)."""
        from drl_cli.networks.batch_renorm import joined  # imports torch

        with torch.no_grad():
            next_action, cost = self.next_action(nets, batch, random)
        obs, action = joined(batch["obs"], batch["next_obs"]), torch.cat([batch["action"], next_action])
        q, next_q = nets.critic(obs, action, True).chunk(2, -1)  # [2, B] each
        target = batch["reward"] + batch["discount"] * (next_q.detach().amin(0) - cost)
        loss = twin_critics(q, target, batch.get("weight"))
        return loss, {"critic_loss": loss, "q_mean": q.mean(), "td_error": (q - target).detach().abs().mean(0)}

    def value(self, critic: Any, obs: Any, action: Tensor, random: Random) -> Tensor:  # Any: a network; see drl.torso
        """Return the smaller value of the two critics, `[B]`. Batch renormalisation uses its running statistics."""
        value: Tensor = critic(obs, action).amin(0)
        return value
