"""QR-DQN (Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", arXiv 1710.10044).

QR-DQN is DQN whose network predicts K = `quantiles` quantiles of the return for each action, at the fractions
(i + 1/2) / K. The loss is quantile regression on the quantiles of the target. The policy chooses the action whose
quantiles have the largest mean, and `risk` changes their weights. Replay priorities are |TD errors| of the mean return.
All options of DQN apply except `loss`, which `kappa` replaces: the loss is quadratic for errors up to kappa.
"""

from dataclasses import dataclass

import numpy as np

from drl_cli.algos.value import _distributional, dqn
from drl_cli.algos.value._q_learner import Random
from drl_cli.losses.critics import quantile_critic
from drl_cli.losses.distributional import distorted_cumulative, midpoints
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, NonNegative

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION


@dataclass(frozen=True, kw_only=True)
class Config(_distributional.Config):
    """The options of QR-DQN, in addition to the options of DQN."""

    quantiles: Count
    kappa: NonNegative

    @property
    def outputs(self) -> int:
        return self.quantiles


class Policy(dqn.Policy):
    """Chooses the action whose quantiles have the largest mean. `risk` changes the weights of the quantiles."""

    config: Config

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        # Each quantile stands for one of K equal intervals of (0, 1). Its weight is 1 / K, unless `risk` changes it.
        ends = np.linspace(0.0, 1.0, config.quantiles + 1, dtype=np.float32)
        self.weights = np.diff(distorted_cumulative(ends, config.risk, config.risk_level))

    def load(self, params: Array) -> None:
        super().load(params)
        *_, weight, bias = self.params
        # A value is a weighted mean of quantiles, so a last layer with averaged parameters returns the values directly.
        self.params[-2:] = self.expected(weight), self.expected(bias[None])[0]  # [None] makes a batch of one row

    def expected(self, out: Array) -> Array:
        """Convert quantiles `[N, A K]` to values `[N, A]`: the weighted mean of the K quantiles of each action."""
        mean: Array = out.reshape(-1, self.action.size, self.config.quantiles) @ self.weights
        return mean


class Algorithm(_distributional.Algorithm):
    """Learns the Q network from batches, with the loss of QR-DQN."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.fraction = torch.from_numpy(midpoints(config.outputs)).to(self.context.device)

    def expected(self, distribution: Tensor) -> Tensor:
        return distribution.mean(-1)

    def compare(self, q: Tensor, target: Tensor, weight: Tensor | None, random: Random) -> tuple[Tensor, Tensor]:
        """Return the mean quantile regression loss, and |TD error| `[N]` of the mean return.

        `q` `[N, K]` has the predicted quantiles of the batch's actions, and `target` `[N, M]` has the quantiles of the
        target. `weight` `[N]` multiplies the loss of each row. For IQN, `random` has the fractions of `q`.
        """
        fraction = self.fraction if random.fraction is None else random.fraction
        loss = quantile_critic(q, target, fraction, self.config.kappa, weight)
        return loss, (q.mean(-1) - target.mean(-1)).abs()
