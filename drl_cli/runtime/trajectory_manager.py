"""TrajectoryManager: owns the replay store; answers `insert` and `sample`, and knows nothing of the algorithm."""

import numpy as np

from drl_cli.replay.samplers import Sampler
from drl_cli.replay.store import RingStore
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, SampleBatch
from drl_cli.types import Columns


class TrajectoryManager:
    """Rows go in block by block, batches come out for a named trainer."""

    def __init__(self, store: RingStore, sampler: Sampler) -> None:
        self.store, self.sampler = store, sampler
        self.last_block: dict[tuple[int, int], int] = {}

    def insert(self, message: InsertTransition, columns: Columns) -> int:
        """Copy the rows in; returns the inserts so far. Raises ValueError for a block that came before."""
        for block in message.blocks:
            if block.number <= self.last_block.get((block.worker, block.incarnation), -1):
                raise ValueError(f"block {block.number} of worker {block.worker} was inserted before")
        self.store.insert(columns)
        self.last_block |= {(block.worker, block.incarnation): block.number for block in message.blocks}
        return self.store.inserts

    def sample(self, message: SampleBatch) -> tuple[BatchTrainingData, Columns]:
        """Fresh columns `[num_batches, batch_size, ...]`; raises ValueError while the store is empty."""
        if len(self.store) == 0:
            raise ValueError("can't sample from an empty replay")
        slots = self.sampler.sample(len(self.store), message.num_batches, message.batch_size)
        header = BatchTrainingData(message.trainer, message.num_batches, message.batch_size, self.store.inserts)
        return header, self.store.take(slots)

    def contents(self) -> Columns:
        """A copy of all stored rows, oldest first, `[rows, ...]`."""
        size, inserts = len(self.store), self.store.inserts
        return self.store.take(np.arange(inserts - size, inserts) % self.store.capacity)
