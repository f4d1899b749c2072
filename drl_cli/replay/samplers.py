"""Samplers: the choice of rows for batches."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from drl_cli.replay.config import PrioritizedConfig
from drl_cli.replay.sum_tree import SumTree
from drl_cli.types import Array, State
from drl_cli.utils.seeding import rng_state, set_rng_state


class Sampler(ABC):
    """Draws slots of a store. `insert` and `update` tell it about new rows and new priorities."""

    nbytes = 0
    """Allocated bytes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    @abstractmethod
    def sample(self, size: int, num_batches: int, batch_size: int) -> tuple[Array, Array | None]:
        """Draw batches among the first `size` slots.

        Return slots `[num_batches, batch_size]`, and importance weights of this shape, float32, or None if all rows are
        equally probable.
        """

    def insert(self, slots: Array, priorities: Array | None = None) -> None:
        """Note new rows in slots `[rows]`, with initial priorities `[rows]` if the worker computed them."""

    def update(self, slots: Array, priorities: Array) -> None:
        """Set priorities `[rows]` of sampled rows; the last one counts for a slot that repeats."""

    def stats(self) -> Mapping[str, float]:
        """Return values to log."""
        return {}

    def state(self) -> State:
        """Return everything needed to continue exactly."""
        return {"rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        """Restore the `state()` of a sampler for the same number of slots."""
        set_rng_state(self.rng, state["rng"])


class Uniform(Sampler):
    """Draws every row with the same probability, with replacement."""

    def sample(self, size: int, num_batches: int, batch_size: int) -> tuple[Array, Array | None]:
        return self.rng.integers(0, size, (num_batches, batch_size)), None


class Prioritized(Sampler):
    """Draws rows in proportion to (priority + eps)^alpha, with replacement (Schaul et al. 2015, arXiv 1511.05952).

    Draws are stratified: each draw of a batch falls into its own equal share of the total priority. With probability
    `uniform_mix` a draw is uniform instead. A row with probability P (of the mixture) among N rows has the importance
    weight (N P)^-beta, divided by the largest weight of its batch (section 3.4). Beta rises linearly from its
    configured value to 1 over `num_batches` batches.

    New rows get the priority computed by the worker (Horgan et al. 2018, "Distributed Prioritized Experience Replay"),
    or else the largest priority in the table. (Schaul et al. use the largest priority ever seen, so that after one
    spike all later rows would be preferred for good.)
    """

    def __init__(self, config: PrioritizedConfig, rng: np.random.Generator, num_batches: int) -> None:
        super().__init__(rng)
        self.config, self.num_batches = config, num_batches
        self.tree = SumTree(config.num_rows)
        self.nbytes = self.tree.nbytes
        self.largest = 1.0
        self.drawn = 0
        self.bad = 0

    def insert(self, slots: Array, priorities: Array | None = None) -> None:
        self.largest = self.tree.maximum or self.largest
        if priorities is None:
            self.tree.set(slots, self.largest)
        else:
            self.update(slots, priorities)

    def sample(self, size: int, num_batches: int, batch_size: int) -> tuple[Array, Array | None]:
        shape, total, mix = (num_batches, batch_size), self.tree.total, self.config.uniform_mix
        mass = (np.arange(batch_size) + self.rng.random(shape)) / batch_size * total
        slots = self.tree.find(mass)
        if mix:
            slots = np.where(self.rng.random(shape) < mix, self.rng.integers(0, size, shape), slots)
        probability = (1.0 - mix) * self.tree.values[slots] / total + mix / size
        beta = self.beta(self.drawn + np.arange(num_batches))
        self.drawn += num_batches
        weights = (size * probability) ** -beta[:, None]
        return slots, (weights / weights.max(1, keepdims=True)).astype(np.float32)

    def beta(self, batch: Array) -> Array:
        """Return beta for the batches with these numbers, counted from 0; exactly 1 from the last batch on."""
        done = np.minimum(1.0, batch / max(1, self.num_batches - 1))
        return 1.0 - (1.0 - self.config.beta) * (1.0 - done)

    def update(self, slots: Array, priorities: Array) -> None:
        """Set priorities. A negative or not finite priority becomes 0 and is counted in `bad`."""
        is_good = np.isfinite(priorities) & (priorities >= 0)
        self.bad += int((~is_good).sum())
        values = np.where(is_good, priorities, 0.0).astype(np.float64) + self.config.eps
        self.tree.set(slots, values**self.config.alpha)

    def stats(self) -> Mapping[str, float]:
        beta = float(self.beta(np.array(self.drawn - 1)))
        return {"bad_priorities": self.bad, "max_priority": self.largest, "beta": beta}

    def state(self) -> State:
        counts = {name: np.array(getattr(self, name)) for name in ("largest", "drawn", "bad")}
        return super().state() | counts | {"values": self.tree.values.copy()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.tree.set(np.arange(self.config.num_rows), state["values"])
        self.largest, self.drawn, self.bad = (state[name].item() for name in ("largest", "drawn", "bad"))
