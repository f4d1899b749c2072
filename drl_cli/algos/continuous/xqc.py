"""XQC (Palenicek et al. 2025, "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning").

The paper is arXiv 2509.25174. XQC is SAC whose critics have batch norm, weights of norm 1, and a categorical
distribution of the return. As in CrossQ, (s, a) and (s', a') form one batch; unlike CrossQ, XQC has target networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import Batch
from drl_cli.algos.continuous.actors import SquashedPolicy, check_support, make_network
from drl_cli.algos.continuous.soft import Random, SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import categorical_critic
from drl_cli.losses.distributional import cross_entropy, project
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Nets
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import Optimizer
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Positive

if TYPE_CHECKING:
    from torch import nn

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(SoftConfig):
    """Options of XQC."""

    initial_alpha: Positive = 0.01
    actor_period: Count = 3
    tau: Fraction = 0.005
    momentum: Fraction = 0.01
    atoms: Count = 101
    v_min: float = -5.0
    v_max: float = 5.0

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor."""

    has_batch_norm = True


class UnitOptimizer(Optimizer):
    """Scales the incoming weights of every unit of the critics to norm 1 after each step of the critics."""

    def step(self, *losses: Tensor, parts: Sequence[str] = ()) -> None:
        super().step(*losses, parts=parts)
        if "critic" in parts:
            critic: Any = self.params.modules["critic"]
            critic.project()
            self.params.changed(("critic",))


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer."""

    optimizer_class = UnitOptimizer
    has_batch_norm = True

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None:
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=context.device)
        super().__init__(config, network, spec, seed, context)
        if config.target_entropy is None:
            self.target_entropy = -0.5 * spec.action.size

    def make_networks(self, network: NetworkConfig, spec: EnvSpec) -> "tuple[nn.Module, nn.Module]":
        from drl_cli.networks.categorical import CategoricalCritics  # imports torch

        critics = CategoricalCritics(network, spec, 2, self.config.momentum, self.config.atoms)
        return make_network(network, spec, 2 * spec.action.size), critics

    def critic_loss(self, nets: Nets, batch: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy of both critics and the target, from forward passes of the joined batch."""
        from drl_cli.networks.batch_renorm import joined  # imports torch

        rows, support, discount = len(batch["reward"]), self.support, batch["discount"]
        with torch.no_grad():
            next_action, cost = self.next_action(nets, batch, random)
            inputs = joined(batch["obs"], batch["next_obs"]), torch.cat([batch["action"], next_action])
            next_probs = nets.target.critic(*inputs, True)[:, rows:].softmax(-1)  # [2, B, K]
            lower = (next_probs @ support).argmin(0)
            next_probs = next_probs[lower, torch.arange(rows, device=lower.device)]
            target = project(next_probs, batch["reward"] - discount * cost, discount, support)
        logits = nets.critic(*inputs, True)[:, :rows]
        loss = torch.stack([categorical_critic(one, target, batch.get("weight")) for one in logits]).sum()
        # The projection clips infinite rewards and would hide them. Adding 0 times the reward makes the loss NaN.
        loss = loss + 0.0 * batch["reward"].sum()
        q = (logits.detach().softmax(-1) @ support).mean()
        divergence = cross_entropy(logits.detach(), target)[2].clamp(min=0.0).mean(0)
        return loss, {"critic_loss": loss, "q_mean": q, "td_error": divergence}

    def value(self, critic: Any, obs: Any, action: Tensor, random: Random) -> Tensor:  # Any: a network; see drl.torso
        """Return the smaller mean return of the two critics, `[B]`. Batch norm uses its running statistics."""
        value: Tensor = (critic(obs, action).softmax(-1) @ self.support).amin(0)
        return value
