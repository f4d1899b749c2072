"""How the running episode of an environment began, and how to bring it back in another process.

No environment can be copied, but nearly all do the same again: what a new one needs is the state of its generator
(`np_random`) before the reset, and the actions since. One that remembers more than that from episode to episode may
offer `save_state() -> dict[str, numpy array]` and `load_state(state)`, both called right before a reset.
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
"""Episodes that are longer can't be brought back: their actions are not kept."""


@dataclass(frozen=True)
class Beginning:
    """What an episode followed from: the seed given to its reset, or the generator's state then, and the memory."""

    seed: int | None
    rng: Array | None
    memory: State

    @classmethod
    def of(cls, env: Env, seed: int | None) -> "Beginning":
        """To be called right before `env.reset(seed)`."""
        base: Any = env.raw.unwrapped  # Any: what it offers beyond Gymnasium's interface
        memory = base.save_state() if hasattr(base, "save_state") else {}
        return cls(seed, None if seed is not None else generator_state(env), memory)

    def state(self) -> State:
        seed = {} if self.seed is None else {"seed": np.array([self.seed])}
        return seed | ({} if self.rng is None else {"rng": self.rng}) | nested("memory", self.memory)

    @classmethod
    def from_state(cls, state: State) -> "Beginning":
        """The inverse of `state`."""
        seed = int(state["seed"].item()) if "seed" in state else None
        return cls(seed, state.get("rng"), within(state, "memory"))

    def repeat(self, env: Env, actions: Iterable[Array]) -> Parts:
        """Begin the episode again and take these steps; returns the observation after them.

        Raises EnvFault when the episode ends on the way, and whatever the environment raises.
        """
        base: Any = env.raw.unwrapped  # Any: as above
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
    """State of the environment's generator `[6]`; None when it has none, or none that can be saved."""
    rng = getattr(env.raw.unwrapped, "_np_random", None)
    if isinstance(rng, np.random.Generator) and isinstance(rng.bit_generator, np.random.PCG64):
        return rng_state(rng)
    return None


def set_generator(env: Env, state: Array) -> None:
    """The inverse of `generator_state`."""
    base = env.raw.unwrapped
    if getattr(base, "_np_random", None) is None:
        base.np_random = np.random.Generator(np.random.PCG64())
    set_rng_state(base.np_random, state)
