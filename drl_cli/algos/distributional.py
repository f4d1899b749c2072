"""Distributional: DQN whose network gives several numbers for each action, and learns a distribution from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from drl_cli.algos import dqn
from drl_cli.networks.q_network import ValueNetwork
from drl_cli.optim.params import Refused
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Config(dqn.Config):
    """What the options of all of them have beside those of DQN."""

    risk: Literal["mean", "cvar", "power"] = "mean"
    risk_level: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.risk == "cvar" and not 0.0 < self.risk_level <= 1.0:
            raise Refused(f"algo.risk_level={self.risk_level:g} has to be above 0 and at most 1 for algo.risk=cvar")


class Algorithm(dqn.Algorithm):
    """The learner. A network gives `[N, A K]`; distributions are `[N, A, K]`, and of one action `[N, K]`."""

    def setup(self, config: dqn.Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.num_actions = spec.action.size

    def read(self, network: ValueNetwork, x: Tensor) -> Tensor:
        return self.by_action(super().read(network, x))

    def by_action(self, values: Tensor) -> Tensor:
        """`[N, A K]` as `[N, A, K]`."""
        return values.view(len(values), self.num_actions, -1)

    def of_action(self, values: Tensor, action: Tensor) -> Tensor:
        values = self.by_action(values)
        return values.gather(1, action.unsqueeze(-1).expand(-1, -1, values.shape[-1])).squeeze(1)

    def to_action(self, values: Tensor, action: Tensor, slope: Tensor) -> Tensor:
        d_values = self.by_action(torch.zeros_like(values))
        d_values.scatter_(1, action.unsqueeze(-1).expand(-1, -1, d_values.shape[-1]), slope.unsqueeze(1))
        return d_values.flatten(1)

    def mean_over(self, values: Tensor, probs: Tensor) -> Tensor:
        """The mean of the actions' numbers: of probabilities those of the mixture, of quantiles Munchausen-IQN's."""
        return (probs.unsqueeze(-1) * values).sum(1)
