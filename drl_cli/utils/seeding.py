"""Random streams. The stream of every role depends on (seed, role, index, incarnation)."""

import random
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

ROLES = ("worker", "policy", "replay", "trainer", "evaluate", "confirm", "shard", "env", "record", "data", "reanalyze")
"""Only append: the position is a part of the stream, and a resumed run must find its own streams again."""


def sequence(seed: int, role: str, index: int = 0, incarnation: int = 0) -> np.random.SeedSequence:
    """Return the seed sequence of one role. Different arguments give independent random streams."""
    return np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), index, incarnation))


def generator(seed: int, role: str, index: int = 0, incarnation: int = 0) -> np.random.Generator:
    """Return a numpy generator for one role."""
    return np.random.Generator(np.random.PCG64(sequence(seed, role, index, incarnation)))


def rng_state(rng: np.random.Generator) -> npt.NDArray[np.uint64]:
    """Return the state of a PCG64 generator, uint64 `[6]`. Raise ValueError for another kind of generator."""
    state = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"can't save a generator of kind {state['bit_generator']}")
    words = [word for value in (state["state"]["state"], state["state"]["inc"]) for word in divmod(value, 2**64)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def set_rng_state(rng: np.random.Generator, state: npt.NDArray[np.uint64]) -> None:
    """Set a PCG64 generator to a state from `rng_state`."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(value) for value in state)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * 2**64 + low, "inc": inc_high * 2**64 + inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


def integers(seed: int, role: str, count: int, index: int = 0, incarnation: int = 0) -> list[int]:
    """Return `count` seeds in [0, 2**31), for environments and libraries that take an int."""
    state = sequence(seed, role, index, incarnation).generate_state(count, np.uint32)
    return [int(value) >> 1 for value in state]


def seed_globals(seed: int) -> None:
    """Seed the global generators of `random` and numpy, which environments may use."""
    random.seed(seed)
    np.random.seed(seed)


def globals_state() -> dict[str, npt.NDArray[np.generic]]:
    """Return the states of the global generators of `random` and numpy."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": np.array(words, np.uint32),
        "python_gauss": np.array([] if gauss is None else [gauss], np.float64),
        "numpy": np.array([*keys, position], np.uint32),
        "numpy_gauss": np.array([cached] if has_gauss else [], np.float64),
    }


def set_globals_state(state: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Set the global generators to states from `globals_state`."""
    gauss, cached = state["python_gauss"].tolist(), state["numpy_gauss"].tolist()
    random.setstate((3, tuple(state["python"].tolist()), gauss[0] if gauss else None))
    *keys, position = state["numpy"].tolist()
    np.random.set_state(("MT19937", keys, position, len(cached), cached[0] if cached else 0.0))
