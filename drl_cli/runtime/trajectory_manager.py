"""TrajectoryManager: owns the replay store; answers `insert`, `sample` and `update_priorities`, knows no algorithm."""

from collections.abc import Mapping

import numpy as np

from drl_cli.replay.samplers import Sampler
from drl_cli.replay.store import RingStore
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, SampleBatch, UpdatePriority
from drl_cli.types import Columns


class TrajectoryManager:
    """Rows go in block by block, batches come out for a named trainer."""

    def __init__(self, store: RingStore, sampler: Sampler) -> None:
        self.store, self.sampler = store, sampler
        self.last_block: dict[tuple[int, int], int] = {}
        self.stale_priorities = 0

    def insert(self, message: InsertTransition, columns: Columns) -> int:
        """Copy the rows in; returns the inserts so far. Raises ValueError for a block that came before."""
        for block in message.blocks:
            if block.number <= self.last_block.get((block.worker, block.incarnation), -1):
                raise ValueError(f"block {block.number} of worker {block.worker} was inserted before")
        first = self.store.inserts
        self.store.insert(columns)
        self.sampler.insert(np.arange(first, self.store.inserts) % self.store.capacity)
        self.last_block |= {(block.worker, block.incarnation): block.number for block in message.blocks}
        return self.store.inserts

    def sample(self, message: SampleBatch) -> tuple[BatchTrainingData, Columns]:
        """Fresh columns `[num_batches, batch_size, ...]`; raises ValueError while the store is empty.

        Batches of prioritized replay have one more column, `weight`.
        """
        if len(self.store) == 0:
            raise ValueError("can't sample from an empty replay")
        draw = self.sampler.sample(len(self.store), message.num_batches, message.batch_size)
        columns, sequence = self.store.take(draw.slots), None
        if draw.weights is not None:
            columns["weight"], sequence = draw.weights, self.store.sequence(draw.slots)
        inserts = self.store.inserts
        return BatchTrainingData(message.trainer, message.num_batches, message.batch_size, inserts, sequence), columns

    def update_priorities(self, message: UpdatePriority) -> Mapping[str, float]:
        """Pass new priorities on for the rows that are still there; returns what is worth reporting."""
        is_there = self.store.holds(message.sequence)
        self.stale_priorities += int((~is_there).sum())
        self.sampler.update(message.sequence[is_there] % self.store.capacity, message.priorities[is_there])
        return {"stale_priorities": self.stale_priorities, **self.sampler.stats()}

    def contents(self) -> Columns:
        """A copy of all stored rows, oldest first, `[rows, ...]`."""
        size, inserts = len(self.store), self.store.inserts
        return self.store.take(np.arange(inserts - size, inserts) % self.store.capacity)
