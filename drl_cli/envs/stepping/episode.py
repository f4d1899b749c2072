"""The start of a running episode, from which another process can repeat the episode.

Environments can't be copied, but nearly all are deterministic. To repeat an episode, a new environment needs the state
of the random generator `np_random` before the reset, and the actions since the reset. An environment that keeps other
data from one episode to the next can define `save_state() -> dict[str, numpy array]` and `load_state(state)`; both are
called before a reset.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvFault
from drl_cli.envs.make import Env
from drl_cli.envs.observations import Parts
from drl_cli.types import Array, State, nested, within
from drl_cli.utils.seeding import rng_state, set_rng_state

MAX_STEPS = 10_000
"""Longer episodes can't be repeated, because only this number of actions is kept."""


@dataclass(frozen=True)
class Beginning:
    """The start of an episode: the seed of the reset (or the generator's state), and the environment's saved state."""

    seed: int | None
    rng: Array | None
    memory: State

    @classmethod
    def of(cls, env: Env, seed: int | None) -> "Beginning":
        """Return the start of the episode that the next `env.reset(seed)` will begin."""
        base: Any = env.raw.unwrapped  # Any: the environment may define `save_state`
        memory = base.save_state() if hasattr(base, "save_state") else {}
        return cls(seed, None if seed is not None else generator_state(env), memory)

    def state(self) -> State:
        seed = {} if self.seed is None else {"seed": np.array([self.seed])}
        return seed | ({} if self.rng is None else {"rng": self.rng}) | nested("memory", self.memory)

    @classmethod
    def from_state(cls, state: State) -> "Beginning":
        seed = int(state["seed"].item()) if "seed" in state else None
        return cls(seed, state.get("rng"), within(state, "memory"))

    def repeat(self, env: Env, actions: Iterable[Array]) -> Parts:
        """Begin the episode again, take these actions, and return the last observation.

        Raise EnvFault if one of the actions ends the episode. Exceptions of the environment are passed on.
        """
        base: Any = env.raw.unwrapped  # Any: the environment may define `load_state`
        if self.memory:
            base.load_state(self.memory)
        if self.rng is not None:
            set_generator(env, self.rng)
        parts = env.reset(self.seed)
        for action in actions:
            parts, _, terminated, truncated = env.step(action)
            if terminated or truncated:
                raise EnvFault("its episode ended earlier")
        return parts


def generator_state(env: Env) -> Array | None:
    """Return the state `[6]` of the environment's random generator, or None if it has no generator or saving fails."""
    rng = getattr(env.raw.unwrapped, "_np_random", None)
    if isinstance(rng, np.random.Generator) and isinstance(rng.bit_generator, np.random.PCG64):
        return rng_state(rng)
    return None


def set_generator(env: Env, state: Array) -> None:
    """Set the state of the environment's random generator."""
    base = env.raw.unwrapped
    if getattr(base, "_np_random", None) is None:
        base.np_random = np.random.Generator(np.random.PCG64())
    set_rng_state(base.np_random, state)
