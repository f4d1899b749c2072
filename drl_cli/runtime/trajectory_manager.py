"""TrajectoryManager: owns a replay table; answers `insert`, `sample` and `update_priorities`, knows no algorithm."""

import numpy as np

from drl_cli.replay.base import Table
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, SampleBatch, UpdatePriority
from drl_cli.runtime.normalization import Layout
from drl_cli.types import Columns
from drl_cli.utils.moments import RunningMoments


class TrajectoryManager:
    """Rows go in block by block, batches come out in parts, one for each trainer.

    With a `layout` it keeps the moments of all rows that ever came in, for the trainer to normalise by; rows stay raw.
    """

    def __init__(self, table: Table, shard: int = 0, layout: Layout | None = None) -> None:
        self.table, self.shard, self.layout = table, shard, layout
        self.moments = None if layout is None else RunningMoments.empty(layout.size)
        self.last_block: dict[tuple[int, int], int] = {}

    def insert(self, message: InsertTransition, columns: Columns) -> int:
        """Copy the rows in; returns the inserts so far. Raises ValueError for a block that came before."""
        for block in message.blocks:
            if block.number <= self.last_block.get((block.worker, block.incarnation), -1):
                raise ValueError(f"block {block.number} of worker {block.worker} was inserted before")
        versions = np.repeat([block.version for block in message.blocks], [block.rows for block in message.blocks])
        self.table.insert(columns, versions)
        if self.layout is not None and self.moments is not None:
            self.moments = self.moments.merge(self.layout.moments(columns))
        self.last_block |= {(block.worker, block.incarnation): block.number for block in message.blocks}
        return self.table.inserts

    def sample(self, message: SampleBatch) -> tuple[BatchTrainingData | Columns, ...]:
        """A header and fresh columns `[U, B / num_trainers, ...]` for each trainer in turn.

        The parts are consecutive rows of the batches that a single trainer would have got.
        """
        drawn = self.table.sample(message.num_batches, message.batch_size, message.version)
        size, stats = message.batch_size // message.num_trainers, dict(self.table.stats())
        if self.moments is not None:
            stats["normalizer_count"] = self.moments.count
        parts: list[BatchTrainingData | Columns] = []
        for trainer in range(message.num_trainers):
            mine = slice(trainer * size, (trainer + 1) * size)
            numbers = None if drawn.sequence is None else drawn.sequence[:, mine]
            served = (trainer, drawn.num_batches, size, self.table.inserts, numbers, drawn.dropped, stats)
            parts += [
                BatchTrainingData(*served, message.version, self.shard, self.moments),
                drawn.columns if message.num_trainers == 1 else _part(drawn.columns, mine),
            ]
        return tuple(parts)

    def update_priorities(self, message: UpdatePriority) -> None:
        """Pass new priorities on."""
        self.table.update_priorities(message.sequence, message.priorities)

    def contents(self) -> Columns:
        """A copy of all stored rows, oldest first, `[rows, ...]`."""
        return self.table.contents()


def _part(columns: Columns, rows: slice) -> Columns:
    return {name: np.ascontiguousarray(column[:, rows]) for name, column in columns.items()}
