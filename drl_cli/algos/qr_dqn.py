"""QR-DQN (Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", arXiv 1710.10044).

The network gives `quantiles` of the return at the fractions (i + 1/2) / quantiles; the loss is quantile regression on
those of the target. All of DQN's options apply, but `loss`, in whose place stands `kappa`; the mean of the quantiles
chooses. Priorities are the errors of the means. Differs from drl_cli/algos/dqn.py by the loss alone.
"""

from dataclasses import dataclass

from drl_cli.algos import distributional, dqn
from drl_cli.losses.distributional import quantile_huber
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count, NonNegative

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION


@dataclass(frozen=True)
class Config(dqn.Config):
    """Options of QR-DQN, beside those of DQN."""

    quantiles: Count = 32
    kappa: NonNegative = 1.0

    @property
    def outputs(self) -> int:
        return self.quantiles


class Policy(dqn.Policy):
    """Acts by the means of the quantiles."""

    config: Config

    def expected(self, out: Array) -> Array:
        mean: Array = out.reshape(-1, self.action.size, self.config.quantiles).mean(-1)
        return mean


class Algorithm(distributional.Algorithm):
    """The learner."""

    config: Config

    def setup(self, config: dqn.Config, spec: EnvSpec) -> None:
        assert isinstance(config, Config)
        super().setup(config, spec)
        self.fraction = (torch.arange(self.atoms, device=self.context.device) + 0.5) / self.atoms

    def distribution(self, out: "torch.Tensor") -> "torch.Tensor":
        return out.view(len(out), -1, self.atoms)

    def expected(self, distribution: "torch.Tensor") -> "torch.Tensor":
        return distribution.mean(-1)

    def errors(
        self, q: "torch.Tensor", reward: "torch.Tensor", discount: "torch.Tensor", next_q: "torch.Tensor"
    ) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
        """As for DQN: q and next_q `[N, K]` are quantiles, the error is that of their means."""
        target = reward.unsqueeze(-1) + discount.unsqueeze(-1) * next_q
        loss, slope = quantile_huber(q, target, self.fraction, self.config.kappa)
        return loss, slope, (q.mean(-1) - target.mean(-1)).abs()
