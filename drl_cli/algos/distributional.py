"""Distributional DQN: the base of C51, QR-DQN and IQN, whose networks predict a distribution of returns."""

from dataclasses import dataclass
from typing import Literal

from drl_cli.algos import dqn
from drl_cli.networks.implicit import ValueNetwork
from drl_cli.optim.group import Refused
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch


@dataclass(frozen=True)
class Config(dqn.Config):
    """Options of the distributional algorithms, in addition to those of DQN."""

    risk: Literal["mean", "cvar", "power"] = "mean"
    risk_level: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.risk == "cvar" and not 0.0 < self.risk_level <= 1.0:
            raise Refused(f"algo.risk_level={self.risk_level:g} has to be above 0 and at most 1 for algo.risk=cvar")


class Algorithm(dqn.Algorithm):
    """DQN whose networks return K numbers for each action, in the shape `[N, A K]`."""

    def setup(self, config: dqn.Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.num_actions = spec.action.size

    def read(self, network: ValueNetwork, x: Tensor, fraction: Tensor | None) -> Tensor:
        return self.by_action(super().read(network, x, fraction))

    def by_action(self, values: Tensor) -> Tensor:
        """Reshape `[N, A K]` to `[N, A, K]`."""
        return values.view(len(values), self.num_actions, -1)

    def of_action(self, values: Tensor, action: Tensor) -> Tensor:
        values = self.by_action(values)
        return values.gather(1, action.unsqueeze(-1).expand(-1, -1, values.shape[-1])).squeeze(1)

    def of_action_backward(self, values: Tensor, action: Tensor, slope: Tensor) -> Tensor:
        d_values = self.by_action(torch.zeros_like(values))
        d_values.scatter_(1, action.unsqueeze(-1).expand(-1, -1, d_values.shape[-1]), slope.unsqueeze(1))
        return d_values.flatten(1)

    def mean_over(self, values: Tensor, probs: Tensor) -> Tensor:
        """Return the mean of `values` `[N, A, K]` over the actions, weighted by `probs` `[N, A]`: `[N, K]`."""
        return (probs.unsqueeze(-1) * values).sum(1)
