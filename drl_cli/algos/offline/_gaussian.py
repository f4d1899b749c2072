"""The actor of BC, AWAC and IQL: a Gaussian with the mean tanh(f(s)) and state-independent standard deviations.

Datasets contain actions of exactly -1 and 1. The log-density of a tanh-Gaussian is infinite there, but the log-density
of this Gaussian is finite.
"""

from typing import Any

import numpy as np

from drl_cli.algos.policy import NetworkPolicy
from drl_cli.losses.distributions import Gaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.gradients import Nets
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep
from drl_cli.utils.lazy import Tensor

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class GaussianPolicy(NetworkPolicy):
    """The Gaussian actor. Its actions are clipped to [-1, 1]."""

    is_squashed = True

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.shapes = [*self.shapes, (spec.action.size,)]
        self.std = np.ones(spec.action.size, np.float32)

    def load(self, params: Array) -> None:
        super().load(params)
        *self.params, log_std = self.params
        self.std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        action = np.tanh(out) + self.std * self.rng.standard_normal(out.shape, np.float32)
        return {"action": np.clip(action, -1.0, 1.0), **memory}


def gaussian(nets: Nets, features: Tensor) -> Gaussian:
    """Return the distribution of actions for features `[B, F]`, from the parts `actor` and `log_std` of `nets`."""
    return Gaussian(nets.actor(features).tanh(), nets.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))
