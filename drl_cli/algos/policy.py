"""RandomActions: the base class of policies, which can draw random actions."""

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.losses.distributions import distribution
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
    actions: Array = distribution(action, equal_logits, None, mask).sample(rng)
    return actions


class RandomActions(Policy):
    """A policy that can draw random actions. TorchPolicy is derived from this class."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.action = spec.action
        self.rng = np.random.default_rng(seed)

    def draw(self, obs: Obs) -> Array:
        """Draw one action `[E, ...]` for each observation `[E, ...]`, uniformly from the legal actions."""
        return random_actions(self.action, obs, self.rng)
