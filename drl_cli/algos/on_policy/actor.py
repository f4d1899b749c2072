"""The policy of PPO and of the algorithms that derive from PPO."""

from typing import Any

import numpy as np

from drl_cli.algos.policy import NetworkPolicy, sample_choices
from drl_cli.losses import policy as losses
from drl_cli.losses.distributions import TanhGaussian
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.optim.group import Refused
from drl_cli.types import ActionSpec, Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema


def log_std_size(action: ActionSpec) -> int:
    """Return the number of log standard deviations: one for each dimension of a box action, otherwise 0."""
    return action.size if action.kind == "box" else 0


def check_squash(config: Any, spec: EnvSpec) -> None:
    """Raise Refused if actions without bounds should be squashed."""
    if config.squash and (spec.action.kind != "box" or spec.action.is_free):
        raise Refused(f"algo.squash=true needs actions with bounds; {spec.id} has {spec.action.text}; say false")


class Policy(NetworkPolicy):
    """The actor: a Gaussian for box actions, a softmax for each discrete choice.

    The head's outputs are the mean of each dimension of a box action, or the logits of the choices. The environment
    clips box actions to [-1, 1]. With `squash`, a box action is the tanh of the Gaussian's sample.
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
        if self.action.kind == "box" and self.is_squashed:
            squashed = TanhGaussian(out, self.log_std)
            action = squashed.sample(self.rng)
            return {"action": action, "log_prob": squashed.log_prob(action), **memory}
        if self.action.kind == "box":
            noise = self.rng.standard_normal(out.shape, dtype=np.float32)
            log_prob = (-0.5 * noise**2 - self.log_std - np.float32(0.5 * losses.LOG_2PI)).sum(-1)
            return {"action": out + np.exp(self.log_std) * noise, "log_prob": log_prob, **memory}
        logits = losses.permitted(out, action_mask(obs))
        action = sample_choices(logits, self.action.choices, self.rng)
        return {"action": action, "log_prob": choice_log_prob(logits, action, self.action.choices), **memory}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        columns = super().random(obs, last)
        action = columns["action"]
        if self.action.kind == "box":
            return {**columns, "log_prob": np.full(len(action), -self.action.size * np.log(2.0), np.float32)}
        logits = losses.permitted(np.zeros((len(action), self.action.size), np.float32), action_mask(obs))
        return {**columns, "log_prob": choice_log_prob(logits, action, self.action.choices)}


def choice_log_prob(logits: Array, action: Array, choices: tuple[int, ...]) -> Array:
    """Return the log-probability `[E]` of actions, given the logits `[E, sum(choices)]` of k independent choices."""
    if len(choices) == 1:  # the usual case; this is four times as fast as the loop below
        log_probs = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
        of_action: Array = log_probs[np.arange(len(logits)), action]
        return of_action
    log_prob = np.zeros(len(logits), np.float32)
    parts = np.split(logits, np.cumsum(choices)[:-1], -1)
    for one, a in zip(parts, action.reshape(len(logits), len(choices)).T, strict=True):
        log_probs = one - np.logaddexp.reduce(one, -1, keepdims=True)
        log_prob += np.take_along_axis(log_probs, a[:, None], -1)[:, 0]
    return log_prob
