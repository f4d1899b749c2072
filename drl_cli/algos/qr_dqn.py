"""QR-DQN (Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", arXiv 1710.10044).

The network gives `quantiles` of the return at the fractions (i + 1/2) / quantiles; the loss is quantile regression on
the target's quantiles. Actions are chosen by the mean of the quantiles. All options of DQN apply, except `loss`, which
`kappa` replaces. Priorities are the errors of the means. Differs from drl_cli/algos/dqn.py only by the loss.
"""

from dataclasses import dataclass

import numpy as np

from drl_cli.algos import distributional, dqn
from drl_cli.algos.base import Batch
from drl_cli.losses.distributional import midpoints, quantile_huber, risky_share
from drl_cli.losses.value import backed_up
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, NonNegative

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION


@dataclass(frozen=True)
class Config(distributional.Config):
    """Options of QR-DQN, in addition to those of DQN."""

    quantiles: Count = 32
    kappa: NonNegative = 1.0

    @property
    def outputs(self) -> int:
        return self.quantiles


class Policy(dqn.Policy):
    """Acts by the mean of each action's quantiles."""

    config: Config

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        ends = np.linspace(0.0, 1.0, config.quantiles + 1, dtype=np.float32)
        self.share = np.diff(risky_share(ends, config.risk, config.risk_level))

    def load(self, params: Array) -> None:
        super().load(params)
        *_, weight, bias = self.params  # means are linear in the quantiles, so a last layer can give them directly
        self.params[-2:] = self.expected(weight), self.expected(bias[None])[0]

    def expected(self, out: Array) -> Array:
        mean: Array = out.reshape(-1, self.action.size, self.config.quantiles) @ self.share
        return mean


class Algorithm(distributional.Algorithm):
    """The trainer's side of QR-DQN."""

    config: Config

    def setup(self, config: dqn.Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.fraction = torch.from_numpy(midpoints(config.outputs)).to(self.context.device)

    def expected(self, distribution: Tensor) -> Tensor:
        return distribution.mean(-1)

    def errors(self, q: Tensor, reward: Tensor, next_q: Tensor, rows: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return what DQN's `errors` returns; q and next_q `[N, K]` are quantiles, whose means give the TD error."""
        target = backed_up(reward.unsqueeze(-1), rows["discount"].unsqueeze(-1), next_q, self.config.rescale)
        loss, slope = quantile_huber(q, target, rows.get("fraction", self.fraction), self.config.kappa)
        return loss, slope, (q.mean(-1) - target.mean(-1)).abs()
