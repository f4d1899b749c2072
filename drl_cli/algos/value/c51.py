"""C51 (Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", arXiv 1707.06887).

C51 is DQN whose network predicts a distribution of the return for each action: the probabilities of `atoms` equally
spaced values from `v_min` to `v_max`. The loss is the cross-entropy of this distribution and the projected target. The
policy chooses the action with the largest mean return, unless `risk` selects a risk measure. Replay priorities are KL
divergences (Rainbow, Hessel et al. 2018, arXiv 1710.02298). All options of DQN except `loss` apply.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from drl_cli.algos.value import _distributional, dqn
from drl_cli.algos.value._q_learner import Random
from drl_cli.errors import Refused
from drl_cli.losses.critics import mean
from drl_cli.losses.distributional import distorted_cumulative, project, project_numpy, softmax_numpy
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.head import Head
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, tree
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Range

ACTIONS, TABLES, EXPLORATION = dqn.ACTIONS, dqn.TABLES, dqn.EXPLORATION


@dataclass(frozen=True, kw_only=True)
class Config(_distributional.Config):
    """The options of C51, in addition to the options of DQN. Raise Refused if `v_min` is not below `v_max`."""

    atoms: Annotated[int, Range(least=2)]
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.v_min >= self.v_max:
            raise Refused(f"algo.v_min={self.v_min:g} has to be below algo.v_max={self.v_max:g}")

    @property
    def outputs(self) -> int:
        return self.atoms


class Policy(dqn.Policy):
    """Chooses the action whose distribution of the return has the largest mean, or the largest risk measure `risk`."""

    config: Config

    def __init__(self, config: Config, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.support = np.linspace(config.v_min, config.v_max, config.atoms, dtype=np.float32)

    def distribution(self, out: Array) -> Array:
        """Convert the network's outputs, logits `[E, A K]`, to the probabilities `[E, A, K]` of the K returns."""
        probs: Array = softmax_numpy(out.reshape(-1, self.action.size, len(self.support)))
        return probs

    def forward(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        """Return the values of all actions, `[E, A]`, and the extra columns: `state` if the encoder is recurrent."""
        logits, memory = super().forward(obs, last)
        return self.expected(logits), memory

    def expected(self, out: Array) -> Array:
        """Convert the network's outputs, logits `[E, A K]`, to the values of all actions, `[E, A]`.

        The value is the mean return. If `risk` is not "mean", a risk measure changes the probabilities of the returns.
        """
        config, probs = self.config, self.distribution(out)
        if config.risk != "mean":
            cumulative = probs.cumsum(-1).clip(max=1.0)  # the clip removes rounding errors
            distorted = distorted_cumulative(cumulative, config.risk, config.risk_level)
            probs = np.diff(distorted, axis=-1, prepend=np.float32(0.0))
        mean: Array = probs @ self.support
        return mean

    def exported_head(self) -> Head:
        risk = (self.config.risk, self.config.risk_level)
        # `layers` with all A K outputs: the base class keeps one output for each action.
        return replace(super().exported_head(), layers=self.params, support=self.support, risk=risk)

    def priorities(self, rows: Columns) -> Array:
        """Return KL(target || prediction) `[N]`. Both use this network, as a policy has no target network."""
        index = np.arange(len(rows["action"]))
        obs, next_obs = tree(rows, "obs"), tree(rows, "next_obs")
        logits, _ = super().forward(obs, None)  # `forward` of this class returns values
        probs = self.distribution(logits)[index, rows["action"]]
        next_logits, _ = super().forward(next_obs, None)
        next_probs = self.distribution(next_logits)[index, self.greedy(next_obs)]
        target = project_numpy(next_probs, rows["reward"], rows["discount"], self.support, self.config.rescale)
        tiny = np.finfo(np.float32).tiny  # makes 0 log 0 equal 0
        log_ratio = np.log(np.maximum(target, tiny) / np.maximum(probs, tiny))
        divergence: Array = (target * log_ratio).sum(-1)
        return np.maximum(divergence, 0.0)  # rounding can give a divergence below 0


class Algorithm(_distributional.Algorithm):
    """Learns the Q network from batches, with the loss of C51."""

    def setup(self, config: Config, spec: EnvSpec) -> None:
        super().setup(config, spec)
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=self.context.device)

    def distribution(self, out: Tensor) -> Tensor:
        return out.softmax(-1)

    def expected(self, distribution: Tensor) -> Tensor:
        return distribution @ self.support

    def backed_up(self, reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
        """Return the distribution of reward + discount * next return, projected onto the support: `[N, K]`.

        `reward` and `discount` are `[N]`. `next_q` `[N, K]` has the probabilities of the next state's returns.
        """
        return project(next_q, reward, discount, self.support, self.config.rescale)

    def compare(self, q: Tensor, target: Tensor, weight: Tensor | None, random: Random) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy of target and prediction, and the priorities KL(target || prediction) `[N]`.

        `q` `[N, K]` has predicted logits, and `target` `[N, K]` has probabilities. `weight` `[N]` multiplies each loss.
        """
        cross_entropy = -(target * q.log_softmax(-1)).sum(-1)
        negative_entropy = torch.xlogy(target, target).sum(-1)
        divergence = cross_entropy.detach() + negative_entropy
        return mean(cross_entropy, weight), divergence.clamp(min=0.0)  # rounding can give a divergence below 0
