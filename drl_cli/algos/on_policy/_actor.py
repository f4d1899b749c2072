"""The policy of PPO and of the algorithms that derive from PPO."""

from typing import Any

import numpy as np

from drl_cli.algos.policy import NetworkPolicy
from drl_cli.errors import Refused
from drl_cli.losses.distributions import Categorical, Distribution, Gaussian, MultiCategorical, TanhGaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.types import ActionSpec, Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema


def log_std_size(action: ActionSpec) -> int:
    """Return the number of log standard deviations: one for each dimension of a box action, otherwise 0."""
    return action.size if action.kind == "box" else 0


def check_squash(config: Any, spec: EnvSpec) -> None:
    """Raise Refused if `squash` is True but the actions have no bounds."""
    if config.squash and (spec.action.kind != "box" or spec.action.is_free):
        raise Refused(f"algo.squash=true needs actions with bounds; {spec.id} has {spec.action.text}; say false")


def distribution(action: ActionSpec, squash: bool, out: Any, log_std: Any, mask: Any = None) -> Distribution:
    """Return the distribution of actions, given the actor's outputs `[N, outputs]`, in numpy or torch.

    The outputs are the mean of each dimension of a box action, or the logits of the choices. `log_std` is `[A]` or
    `[N, A]`; it is not used for choices. `mask`, bool `[N, outputs]`, is False for illegal choices.
    """
    if action.kind == "box":
        return (TanhGaussian if squash else Gaussian)(out, log_std)
    return Categorical(out, mask) if action.kind == "discrete" else MultiCategorical(out, action.choices, mask)


class Policy(NetworkPolicy):
    """The actor: a Gaussian for box actions, a softmax for each discrete choice.

    Without `squash`, the environment clips box actions to [-1, 1]. With `squash`, a box action is the tanh of a sample
    of the Gaussian.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(config, network, spec, seed)
        self.shapes = [*self.shapes, (log_std_size(spec.action),)]
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
        *self.params, self.log_std = self.params

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        out, memory = self.forward(obs, last)
        chosen = distribution(self.action, self.is_squashed, out, self.log_std, action_mask(obs))
        if self.is_squashed:  # from the action as in the trainer, because tanh may have rounded the action to 1
            action = chosen.sample(self.rng)
            return {"action": action, "log_prob": chosen.log_prob(action), **memory}
        action, log_prob = chosen.sample_log_prob(self.rng)
        return {"action": action, "log_prob": log_prob, **memory}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        columns = super().random(obs, last)
        action, size = columns["action"], self.action.size
        if self.action.kind == "box":
            log_prob = np.full(len(action), -size * np.log(2.0), np.float32)  # the density on [-1, 1] is 1/2
            return {**columns, "log_prob": log_prob}
        equal = np.zeros((len(action), size), np.float32)
        chosen = distribution(self.action, self.is_squashed, equal, self.log_std, action_mask(obs))
        return {**columns, "log_prob": chosen.log_prob(action)}
