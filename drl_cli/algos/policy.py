"""Random actions, and RandomActions, the base class of policies that draw them."""

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.losses.policy import permitted
from drl_cli.networks.encoder import action_mask
from drl_cli.types import ActionSpec, Array, EnvSpec, Obs, num_rows


def random_actions(action: ActionSpec, obs: Obs, rng: np.random.Generator) -> Array:
    """Draw one action for each observation `[E, ...]`, uniformly from the legal actions.

    Return box actions `[E, A]` in [-1, 1], discrete actions int64 `[E]`, or multi-discrete actions int64 `[E, k]`.
    """
    rows, mask = num_rows(obs), action_mask(obs)
    if action.kind == "box":
        return rng.uniform(-1.0, 1.0, (rows, action.size)).astype(np.float32)
    if mask is None and action.kind == "discrete":
        return rng.integers(action.size, size=rows)
    equal_logits = np.zeros((rows, action.size), np.float32)  # all legal actions have the same probability
    return sample_choices(permitted(equal_logits, mask), action.choices, rng)


class RandomActions(Policy):
    """A policy that can draw random actions. TorchPolicy is derived from this class."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.action = spec.action
        self.rng = np.random.default_rng(seed)

    def draw(self, obs: Obs) -> Array:
        """Draw one action `[E, ...]` for each observation `[E, ...]`, uniformly from the legal actions."""
        return random_actions(self.action, obs, self.rng)


def sample_choices(logits: Array, choices: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Sample discrete actions `[n]`, or multi-discrete actions `[n, k]`, from the softmax of each component's logits.

    `choices` has the number of choices of each of the k components. `logits` `[n, sum(choices)]` has the logits of all
    components, one after the other. The argmax of logits plus Gumbel noise is a sample of the softmax (Gumbel-max).
    """
    return best_choices(logits + rng.gumbel(size=logits.shape), choices)


def best_choices(values: Array, choices: tuple[int, ...]) -> Array:
    """Return the discrete actions `[n]`, or multi-discrete actions `[n, k]`, with the largest value in each component.

    `choices` has the number of choices of each of the k components. `values` `[n, sum(choices)]` has the values of all
    components, one after the other.
    """
    if len(choices) <= 1:
        best: Array = values.argmax(-1)
        return best
    boundaries = np.cumsum(choices)[:-1]
    components = np.split(values, boundaries, -1)
    return np.stack([component.argmax(-1) for component in components], -1)
