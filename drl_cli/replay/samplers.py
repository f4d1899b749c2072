"""Which rows of the store make a batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from drl_cli.replay.config import PrioritizedConfig
from drl_cli.replay.sum_tree import SumTree
from drl_cli.types import Array, State
from drl_cli.utils.seeding import rng_state, set_rng_state


@dataclass(frozen=True)
class Draw:
    """Slots `[U, B]`, and their importance weights (float32 `[U, B]`) where they are not equally probable."""

    slots: Array
    weights: Array | None = None


class Sampler(Protocol):
    """Chooses slots; it is told what happens to them."""

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""

    def insert(self, slots: Array, priorities: Array | None = None) -> None:
        """New rows are in these slots `[rows]`, with these priorities where the worker gave them some."""

    def sample(self, size: int, num_batches: int, batch_size: int) -> Draw:
        """`num_batches` batches of `batch_size` among the first `size` slots."""

    def update(self, slots: Array, priorities: Array) -> None:
        """New priorities `[rows]` of rows drawn before, oldest first; a slot may repeat."""

    def stats(self) -> Mapping[str, float]:
        """What is worth reporting."""

    def state(self) -> State:
        """Everything, to go on exactly."""

    def load_state(self, state: State) -> None:
        """Go on from `state()` of a sampler for as many slots."""


class Uniform:
    """Every stored row with the same probability, with replacement."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nbytes = 0

    def insert(self, slots: Array, priorities: Array | None = None) -> None:
        """Nothing to note."""

    def sample(self, size: int, num_batches: int, batch_size: int) -> Draw:
        return Draw(self.rng.integers(0, size, (num_batches, batch_size)))

    def update(self, slots: Array, priorities: Array) -> None:
        """Nothing to note."""

    def stats(self) -> Mapping[str, float]:
        return {}

    def state(self) -> State:
        return {"rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        set_rng_state(self.rng, state["rng"])


class Prioritized:
    """In proportion to (priority + eps)^alpha, with replacement (Schaul et al. 2015, arXiv 1511.05952).

    Each batch is stratified: its draws fall into equal shares of the total. With probability `uniform_mix` a draw is
    uniform instead. A row of probability P among N has the weight (N P)^-beta over the largest in its batch (section
    3.4), P being the probability of the mixture; beta goes from its configured value to 1 in `num_batches` batches.

    New rows have the priority that their worker gave them (Horgan et al. 2018, "Distributed Prioritized Experience
    Replay"), or else the largest in the table. (Schaul et al. take the largest ever seen: after one spike all new rows
    would outweigh the others for good.)
    """

    def __init__(self, config: PrioritizedConfig, rng: np.random.Generator, num_batches: int) -> None:
        self.config, self.rng, self.num_batches = config, rng, num_batches
        self.tree = SumTree(config.num_rows)
        self.largest = 1.0
        self.drawn = 0
        self.bad = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tree."""
        return self.tree.nbytes

    def insert(self, slots: Array, priorities: Array | None = None) -> None:
        self.largest = self.tree.maximum or self.largest
        if priorities is None:
            self.tree.set(slots, self.largest)
        else:
            self.update(slots, priorities)

    def sample(self, size: int, num_batches: int, batch_size: int) -> Draw:
        shape, total, mix = (num_batches, batch_size), self.tree.total, self.config.uniform_mix
        mass = (np.arange(batch_size) + self.rng.random(shape)) / batch_size * total
        slots = self.tree.find(mass)
        if mix:
            slots = np.where(self.rng.random(shape) < mix, self.rng.integers(0, size, shape), slots)
        probability = (1.0 - mix) * self.tree.values[slots] / total + mix / size
        beta = self.beta(self.drawn + np.arange(num_batches))
        self.drawn += num_batches
        weights = (size * probability) ** -beta[:, None]
        return Draw(slots, (weights / weights.max(1, keepdims=True)).astype(np.float32))

    def beta(self, batch: Array) -> Array:
        """The exponent for the batches of these numbers, the first being 0: linear, exactly 1 from the last one on."""
        done = np.minimum(1.0, batch / max(1, self.num_batches - 1))
        return 1.0 - (1.0 - self.config.beta) * (1.0 - done)

    def update(self, slots: Array, priorities: Array) -> None:
        """A priority that is negative or not finite counts as 0, and in `bad`."""
        is_good = np.isfinite(priorities) & (priorities >= 0)
        self.bad += int((~is_good).sum())
        values = np.where(is_good, priorities, 0.0).astype(np.float64) + self.config.eps
        self.tree.set(slots, values**self.config.alpha)

    def stats(self) -> Mapping[str, float]:
        return {
            "bad_priorities": self.bad,
            "max_priority": self.largest,
            "beta": float(self.beta(np.array(self.drawn - 1))),
        }

    def state(self) -> State:
        return {
            "values": self.tree.values.copy(),
            "largest": np.array(self.largest),
            "drawn": np.array(self.drawn),
            "bad": np.array(self.bad),
            "rng": rng_state(self.rng),
        }

    def load_state(self, state: State) -> None:
        self.tree.set(np.arange(self.config.num_rows), state["values"])
        self.largest, self.drawn, self.bad = (state[name].item() for name in ("largest", "drawn", "bad"))
        set_rng_state(self.rng, state["rng"])
