"""The stochastic actor of PPO, A2C, IMPALA, APPO and V-MPO."""

from typing import Any

import numpy as np

from drl_cli.algos.policy import NetworkPolicy
from drl_cli.errors import Refused
from drl_cli.losses.distributions import Categorical, Distribution, Gaussian, MultiCategorical, TanhGaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.types import ActionSpec, Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema


def log_std_size(action: ActionSpec) -> int:
    """Return the number of the actor's log standard deviations: one for each Box dimension, 0 for discrete actions."""
    return action.size if action.kind == "box" else 0


def check_squash(config: Any, spec: EnvSpec) -> None:
    """Raise Refused if `config.squash` is True and the action space is not a Box with finite bounds."""
    if config.squash and (spec.action.kind != "box" or spec.action.is_free):
        raise Refused(f"algo.squash=true needs actions with bounds; {spec.id} has {spec.action.text}; say false")


def distribution(action: ActionSpec, squash: bool, out: Any, log_std: Any, mask: Any = None) -> Distribution:
    """Return the distribution of actions in N states, given the actor's outputs `out` `[N, outputs]` (numpy or torch).

    For a Box, `out` has the mean of each dimension, and `log_std` is `[A]` or `[N, A]`. The distribution is a Gaussian,
    or a tanh-Gaussian with `squash`. For discrete actions, `out` has logits, and `log_std` is not used. `mask`, bool
    `[N, outputs]`, is False for illegal discrete actions; without a mask, all actions are legal.
    """
    if action.kind == "box":
        return TanhGaussian(out, log_std) if squash else Gaussian(out, log_std)
    if action.kind == "discrete":
        return Categorical(out, mask)
    return MultiCategorical(out, action.choices, mask)


class Policy(NetworkPolicy):
    """Samples a Box action from a Gaussian, and each component of a discrete action from a softmax.

    With `config.squash`, a Box action is the tanh of the Gaussian's sample. Otherwise, the environment clips a Box
    action to its bounds. `act` also returns the log-probability of each action, before clipping.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.shapes = [*self.shapes, (log_std_size(spec.action),)]  # the layers, and then the log standard deviations
        self.log_std = np.zeros(0, np.float32)
        self.is_squashed = config.squash

    @classmethod
    def check(cls, config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
        check_squash(config, spec)

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {"log_prob": Column((), "float32"), **NetworkPolicy.extra_columns(config, network, spec)}

    def load(self, params: Array) -> None:
        super().load(params)
        *layers, self.log_std = self.params  # as in `shapes`
        self.params = layers

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        chosen = distribution(self.action, self.is_squashed, out, log_std=self.log_std, mask=action_mask(obs))
        if self.is_squashed:
            action = chosen.sample(self.rng)
            log_prob = chosen.log_prob(action)  # of the rounded action (tanh may give 1), which the trainer sees
        else:
            action, log_prob = chosen.sample_log_prob(self.rng)
        return {"action": action, "log_prob": log_prob, **memory}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        columns = super().random(obs, last)
        action, size = columns["action"], self.action.size
        if self.action.kind == "box":
            log_prob = np.full(len(action), -size * np.log(2.0), np.float32)  # uniform on [-1, 1]: the density is 1/2
            return {**columns, "log_prob": log_prob}
        equal_logits = np.zeros((len(action), size), np.float32)
        uniform = distribution(self.action, False, equal_logits, log_std=None, mask=action_mask(obs))
        return {**columns, "log_prob": uniform.log_prob(action)}
