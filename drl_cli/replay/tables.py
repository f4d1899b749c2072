"""A replay table: where transitions go in, and how batches come out. Each is configuration (conf/replay)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from drl_cli.replay.config import PrioritizedConfig, ReplayConfig
from drl_cli.replay.samplers import Prioritized, Sampler, Uniform
from drl_cli.replay.store import RingStore, row_bytes
from drl_cli.replay.sum_tree import tree_bytes
from drl_cli.types import Array, Columns, Schema


@dataclass(frozen=True)
class Sampled:
    """Batches `[num_batches, batch_size, ...]`, of which there may be fewer than were asked for.

    `sequence` `[num_batches, batch_size]` are the numbers of their rows where the table wants priorities back;
    `dropped` transitions were found too old to be served.
    """

    columns: Columns
    num_batches: int
    sequence: Array | None = None
    dropped: int = 0


class Table(Protocol):
    """What the trajectory manager owns."""

    @property
    def inserts(self) -> int:
        """Transitions that ever came in."""

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""

    def __len__(self) -> int:
        """Transitions that are stored now."""

    def insert(self, columns: Columns, versions: Array) -> None:
        """Take rows `[rows, ...]` in; `versions` `[rows]` are those of the parameters that acted."""

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Draw batches for a trainer whose newest parameters are of this version."""

    def update_priorities(self, sequence: Array, priorities: Array) -> None:
        """New priorities for the rows of these numbers, both `[num_batches, batch_size]`."""

    def stats(self) -> Mapping[str, float]:
        """What is worth reporting: whole numbers are counts, which add up over shards; the rest is averaged."""

    def contents(self) -> Columns:
        """A copy of all stored rows, oldest first, `[rows, ...]`."""


class ReplayTable:
    """Rows stay until newer ones overwrite them, and may be drawn any number of times."""

    def __init__(self, store: RingStore, sampler: Sampler) -> None:
        self.store, self.sampler = store, sampler
        self.stale_priorities = 0

    def __len__(self) -> int:
        return len(self.store)

    @property
    def inserts(self) -> int:
        """Transitions that ever came in."""
        return self.store.inserts

    @property
    def nbytes(self) -> int:
        """Allocated bytes, of the store and of what the sampler keeps."""
        return self.store.nbytes + self.sampler.nbytes

    def insert(self, columns: Columns, versions: Array) -> None:
        first = self.store.inserts
        self.store.insert(columns)
        self.sampler.insert(np.arange(first, self.store.inserts) % self.store.capacity)

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Prioritized batches have one more column, `weight`; raises ValueError while the table is empty."""
        if len(self) == 0:
            raise ValueError("can't sample from an empty replay")
        draw = self.sampler.sample(len(self.store), num_batches, batch_size)
        columns = self.store.take(draw.slots)
        if draw.weights is None:
            return Sampled(columns, num_batches)
        columns["weight"] = draw.weights
        return Sampled(columns, num_batches, self.store.sequence(draw.slots))

    def update_priorities(self, sequence: Array, priorities: Array) -> None:
        """Those of rows that were overwritten meanwhile are dropped, and counted."""
        is_there = self.store.holds(sequence)
        self.stale_priorities += int((~is_there).sum())
        self.sampler.update(sequence[is_there] % self.store.capacity, priorities[is_there])

    def stats(self) -> Mapping[str, float]:
        stats = self.sampler.stats()
        return {"stale_priorities": self.stale_priorities, **stats} if stats else {}

    def contents(self) -> Columns:
        size, inserts = len(self.store), self.store.inserts
        return self.store.take(np.arange(inserts - size, inserts) % self.store.capacity)


def make_table(config: ReplayConfig, schema: Schema, rng: np.random.Generator, num_batches: int) -> Table:
    """The table of one shard; `num_batches` are those that the whole run will draw from it."""
    store = RingStore(schema, config.capacity)
    if isinstance(config, PrioritizedConfig):
        return ReplayTable(store, Prioritized(config, rng, num_batches))
    return ReplayTable(store, Uniform(rng))


def table_bytes(config: ReplayConfig, schema: Schema) -> int:
    """Bytes that the table of one shard allocates."""
    tree = tree_bytes(config.capacity) if isinstance(config, PrioritizedConfig) else 0
    return row_bytes(schema) * config.capacity + tree


def share_of(config: ReplayConfig, shard: int, num_shards: int) -> ReplayConfig:
    """The config of one shard: the capacity is split, the first shards take what is left over."""
    capacity, rest = divmod(config.capacity, num_shards)
    return replace(config, capacity=capacity + (shard < rest))
