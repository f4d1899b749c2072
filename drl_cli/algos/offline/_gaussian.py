"""The Gaussian actor of AWAC and IQL. Its mean is tanh(f(s)), and its standard deviations do not depend on the state.

AWAC and IQL cannot use the tanh-Gaussian of SAC, because its log-density is infinite at -1 and 1, and datasets contain
such actions. The log-density of a Gaussian is finite everywhere.
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
"""Bounds of the log standard deviations of AWAC, IQL and BC."""


class GaussianPolicy(NetworkPolicy):
    """Samples actions from a Gaussian with the mean tanh(f(s)), and clips the actions to [-1, 1].

    The greedy action is the mean. `std` `[A]` are the standard deviations.
    """

    is_squashed = True

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.shapes = [*self.shapes, (spec.action.size,)]  # the layers, and then the log standard deviations
        self.std = np.ones(spec.action.size, np.float32)

    def load(self, params: Array) -> None:
        super().load(params)
        *layers, log_std = self.params  # as in `shapes`
        self.params = layers
        self.std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        noise = self.rng.standard_normal(out.shape, np.float32)
        action = np.tanh(out) + self.std * noise
        return {"action": np.clip(action, -1.0, 1.0), **memory}


def gaussian(nets: Nets, features: Tensor) -> Gaussian:
    """Return the actor's Gaussian in B states, with means `[B, A]`. `features` `[B, F]` are the encoder's outputs."""
    return Gaussian(nets.actor(features).tanh(), nets.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))
