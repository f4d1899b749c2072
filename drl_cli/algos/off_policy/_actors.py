"""Policies, exploration noise and checks that the off-policy algorithms for continuous actions share."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from drl_cli.algos.learner import LearnerConfig
from drl_cli.algos.off_policy._noise import PinkNoise
from drl_cli.algos.policy import NetworkPolicy
from drl_cli.errors import Refused
from drl_cli.losses.distributions import TanhGaussian
from drl_cli.losses.policy import LOG_STD_MAX, LOG_STD_MIN
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.context import Context
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, State, num_rows
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import NonNegative, Positive

Random = dict[str, Any]  # Any: a tensor, or a list of tensors
"""The random numbers of one loss function, by name.

`action` is standard normal noise for one action `[B, A]`, or for S actions `[B, S A]`, in each row. `masks` and
`target_masks` are the dropout masks of the critics and of their target networks. An algorithm's method `draw` or
`update` may add other random numbers.
"""


@dataclass(frozen=True, kw_only=True)
class NoiseConfig(LearnerConfig):
    """The options that algorithms with exploration noise share.

    `noise` is a standard deviation. Actions are in [-1, 1], so a noise of 1 is half of the action range. `noise_kind`
    chooses independent Gaussian noise, or Ornstein-Uhlenbeck noise (ou) with sigma = `noise` and theta = `ou_theta`.
    """

    noise: NonNegative
    noise_kind: Literal["gaussian", "ou"]
    ou_theta: Positive


class DeterministicPolicy(NetworkPolicy):
    """A deterministic actor: the action is the tanh of the network's outputs, plus noise for exploration.

    `drift` `[E, A]` is the present Ornstein-Uhlenbeck noise of each of E environments.
    """

    is_squashed = True

    def __init__(self, config: NoiseConfig, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.config = config
        self.drift: Array = np.zeros((0, spec.action.size), np.float32)

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        noisy = np.tanh(out) + self.draw_noise(num_rows(obs), last)
        return {"action": np.clip(noisy, -1.0, 1.0), **memory}

    def draw_noise(self, rows: int, last: PreviousStep | None) -> Array:
        """Draw exploration noise `[rows, A]` for the actions of `rows` environments.

        Ornstein-Uhlenbeck noise x is correlated in time: x <- x - theta x + sigma N(0, 1). It starts at 0 in every
        episode (Lillicrap et al. 2016, section 7; Uhlenbeck & Ornstein 1930). `last.begins` tells which episodes begin.
        If `last` is None, no episode begins.
        """
        config = self.config
        white_noise = config.noise * self.rng.standard_normal((rows, self.action.size), np.float32)
        if config.noise_kind == "gaussian":
            return np.asarray(white_noise, np.float32)
        if len(self.drift) != rows:  # the first call, or another number of environments than before
            self.drift = np.zeros((rows, self.action.size), np.float32)
        begins = np.zeros(rows, np.bool_) if last is None else np.asarray(last.begins)
        before = np.where(begins[:, None], np.float32(0), self.drift)
        self.drift = np.asarray(before - np.float32(config.ou_theta) * before + white_noise, np.float32)
        return self.drift

    def state(self) -> State:
        return super().state() | {"drift": self.drift.copy()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.drift = state["drift"].copy()


class SquashedPolicy(NetworkPolicy):
    """The stochastic actor of SAC: the action is the tanh of a sample from a Gaussian.

    The network has 2 outputs for each dimension of the action: mean and log standard deviation of the Gaussian.
    """

    is_squashed = True
    outputs = 2

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        mean, log_std = out[:, : self.action.size], out[:, self.action.size :]
        std = np.exp(np.minimum(np.maximum(log_std, LOG_STD_MIN), LOG_STD_MAX))  # faster than `np.clip`
        return {"action": np.tanh(mean + std * self.draw_noise(len(mean), last)), **memory}

    def draw_noise(self, rows: int, last: PreviousStep | None) -> Array:
        """Draw standard normal noise `[rows, A]` for the actions of `rows` environments."""
        return self.rng.standard_normal((rows, self.action.size), np.float32)


class ColouredPolicy(SquashedPolicy):
    """The stochastic actor of SAC, whose noise is correlated in time with `noise_kind=pink`."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.pink = PinkNoise(spec.action.size) if config.noise_kind == "pink" else None

    def draw_noise(self, rows: int, last: PreviousStep | None) -> Array:
        return super().draw_noise(rows, last) if self.pink is None else self.pink.draw(rows, last, self.rng)

    def state(self) -> State:
        return super().state() if self.pink is None else {**super().state(), "pink": self.pink.parts}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if self.pink is not None:
            self.pink.parts = state["pink"].copy()


class BatchNormPolicy(SquashedPolicy):
    """The stochastic actor of CrossQ and XQC. `check` refuses network options that do not fit batch norm in critics."""

    @classmethod
    def check(cls, config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
        if network.layer_norm:
            raise Refused(f"network.layer_norm=true: {config.name} has batch norm; say network.layer_norm=false")
        if network.dropout:
            raise Refused(f"network.dropout={network.dropout:g}: {config.name} has batch norm; say network.dropout=0")
        if network.memory != "none":
            raise Refused(
                f"network.memory={network.memory}: the batch norm of {config.name} would see the padding of sequences; "
                "say network.memory=none"
            )


def check_one_trainer(name: str, context: Context) -> None:
    """Raise Refused if there are several trainers, because the batch norm of each would see only some of the rows."""
    if (num := context.group.size) > 1:
        raise Refused(f"trainer.num={num}: the batch statistics of {name} need all rows; say trainer.num=1")


def squashed(out: Tensor) -> TanhGaussian:
    """Convert an actor's outputs `[B, 2 A]`, means and log standard deviations, to the distribution of its actions."""
    mean, log_std = out.chunk(2, -1)
    return TanhGaussian(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))


def check_support(atoms: int, v_min: float, v_max: float) -> None:
    """Raise Refused if `atoms` values from `v_min` to `v_max` cannot be the support of a categorical distribution."""
    if atoms < 2 or v_min >= v_max:
        raise Refused(f"algo.atoms={atoms} has to be at least 2, and algo.v_min={v_min:g} below algo.v_max={v_max:g}")
