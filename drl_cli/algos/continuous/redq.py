"""REDQ: Randomized Ensembled Double Q-Learning (Chen et al. 2021, arXiv 2101.05982), and DroQ.

REDQ is SAC with an ensemble of critics and many updates of the critics per environment step. The target is the minimum
over a random subset of the ensemble. DroQ (Hiraoka et al. 2022, "Dropout Q-Functions for Doubly Efficient Reinforcement
Learning", arXiv 2110.02034) has only two critics, with dropout and layer norm.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos.base import Batch
from drl_cli.algos.continuous.actors import SquashedPolicy, make_network
from drl_cli.algos.continuous.soft import Random, SoftAlgorithm, SoftConfig
from drl_cli.losses.critics import twin_critics
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Nets
from drl_cli.optim.group import Refused
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction

if TYPE_CHECKING:
    from torch import nn

ACTIONS = ("box",)


@dataclass(frozen=True)
class Config(SoftConfig):
    """Options of REDQ."""

    tau: Fraction = 0.005
    actor_period: Count = 20
    critics: Count = 10
    subset: Count = 2

    def __post_init__(self) -> None:
        if self.subset > self.critics:
            raise Refused(f"algo.subset={self.subset} must not be above algo.critics={self.critics}")


class Policy(SquashedPolicy):
    """The tanh-Gaussian actor, without dropout."""

    has_dropout = True


class Algorithm(SoftAlgorithm):
    """Learns actor, critics and temperature in a trainer. The critics have dropout if `network.dropout` is above 0."""

    has_dropout = True

    def make_networks(self, network: NetworkConfig, spec: EnvSpec) -> "tuple[nn.Module, nn.Module]":
        size = spec.action.size
        self.critics = make_network(network, spec, 1, size, ensemble=self.config.critics)
        return make_network(network, spec, 2 * size), self.critics

    def draw(self, rows: int) -> Random:
        """Return noise for actions, a random order of the critics, and dropout masks of critics and target critics."""
        random, rate = super().draw(rows), self.network.dropout
        random["subset"] = torch.rand(self.config.critics, generator=self.noise, device=self.context.device).argsort()
        for name in ("masks", "target_masks"):
            random[name] = ()
            if rate:
                uniform = self.context.rand(rows, self.critics.mlp.dropout_size, self.noise)
                random[name] = self.critics.mlp.masks(uniform, rate)
        return random

    def q(self, critic: Any, obs: Any, action: Tensor, masks: Any) -> Tensor:  # Any: a network; see torso; tensors
        """Return the values `[N, B]` of N critics."""
        q: Tensor = critic(obs, action, masks).squeeze(-1)
        return q if self.config.critics > 1 else q.unsqueeze(0)

    def critic_loss(self, nets: Nets, batch: Batch, random: Random) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared Bellman error of all critics (REDQ, algorithm 1; DroQ, algorithm 2)."""
        with torch.no_grad():
            next_action, cost = self.next_action(nets, batch, random)
            next_q = self.q(nets.target.critic, batch["next_obs"], next_action, random["target_masks"])
            least = next_q[random["subset"][: self.config.subset]].amin(0)
            target = batch["reward"] + batch["discount"] * (least - cost)
        q = self.q(nets.critic, batch["obs"], batch["action"], random["masks"])
        loss = twin_critics(q, target, batch.get("weight"))
        return loss, {"critic_loss": loss, "q_mean": q.mean(), "td_error": (q - target).abs().mean(0)}

    def value(self, critic: Any, obs: Any, action: Tensor, random: Random) -> Tensor:  # Any: as in `q`
        """Return the mean value of all critics, `[B]`."""
        return self.q(critic, obs, action, random["masks"]).mean(0)
