"""One seed for the run; every role derives its own stream from (seed, role, index, incarnation)."""

import numpy as np

ROLES = ("worker", "policy", "replay", "trainer", "evaluate", "confirm", "shard")


def sequence(seed: int, role: str, index: int = 0, incarnation: int = 0) -> np.random.SeedSequence:
    """The seed sequence of one role; distinct arguments give independent streams."""
    return np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), index, incarnation))


def generator(seed: int, role: str, index: int = 0, incarnation: int = 0) -> np.random.Generator:
    """A numpy generator for one role."""
    return np.random.Generator(np.random.PCG64(sequence(seed, role, index, incarnation)))


def integers(seed: int, role: str, count: int, index: int = 0, incarnation: int = 0) -> list[int]:
    """`count` seeds in [0, 2**31) for libraries that take an int (environments, torch)."""
    state = sequence(seed, role, index, incarnation).generate_state(count, np.uint32)
    return [int(value) >> 1 for value in state]
