"""A table whose batches have a fixed share of recorded rows, which come from a dataset."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from drl_cli.replay.base import Sampled, Table
from drl_cli.types import Array, Columns, State, nested, within

RECORDED = 1 << 62
"""What is added to the ids of recorded rows, which are then larger than all ids of the run's own rows."""


class MixedTable(Table):
    """Draws `share` of every batch from the table `recorded`, and the rest from the table `own` of the run's own rows.

    `recorded` is complete from the start, and checkpoints do not contain its rows. `RECORDED` is added to the ids of
    its rows, except -1, which is the id of padding.
    """

    def __init__(self, own: Table, recorded: Table, share: float) -> None:
        super().__init__(own.store)
        self.own, self.recorded, self.share = own, recorded, share

    def __len__(self) -> int:
        return len(self.own)

    @property
    def inserts(self) -> int:
        return self.own.inserts

    @property
    def nbytes(self) -> int:
        return self.own.nbytes + self.recorded.nbytes

    def insert(self, columns: Columns, versions: Array) -> None:
        self.own.insert(columns, versions)

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Sample batches whose first rows are the run's own, and whose last round(share * batch_size) are recorded."""
        size = recorded_rows(batch_size, self.share)
        own = self.own.sample(num_batches, batch_size - size, version)
        recorded = self.recorded.sample(num_batches, size, version)
        columns = {name: np.concatenate([own.columns[name], recorded.columns[name]], 1) for name in own.columns}
        if own.row_ids is None or recorded.row_ids is None:
            return Sampled(columns, num_batches)
        return Sampled(columns, num_batches, np.concatenate([own.row_ids, _moved(recorded.row_ids, RECORDED)], 1))

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        for table, ids, is_its in self._split(row_ids):
            table.update_priorities(ids, priorities[is_its])

    def write(self, row_ids: Array, columns: Columns) -> None:
        for table, ids, is_its in self._split(row_ids):
            table.write(ids, {name: column[is_its] for name, column in columns.items()})

    def stats(self) -> Mapping[str, float]:
        return {**self.own.stats(), "recorded_rows": len(self.recorded)}

    def contents(self) -> Columns:
        return self.own.contents()

    def state(self) -> State:
        return self.own.state() | nested("recorded", self.recorded.state())

    def load_state(self, state: State) -> None:
        self.own.load_state(state)
        self.recorded.load_state(within(state, "recorded"))

    def pack(self, rows: Columns) -> State:
        return self.own.pack(rows)

    def unpack(self, chunks: Iterable[State]) -> Iterator[Columns]:
        return self.own.unpack(chunks)

    def refill(self, rows: Columns) -> None:
        self.own.refill(rows)

    def _split(self, row_ids: Array) -> Iterator[tuple[Table, Array, Array]]:
        """Yield each table, the ids `[n]` or `[n, L]` of its rows, and a mask of these rows.

        Ids are `[U, B]`, or `[U, B, L]` for rows of L steps. The first step of a row is never padding.
        """
        is_recorded = (row_ids[..., 0] if row_ids.ndim > 2 else row_ids) >= RECORDED
        yield self.own, row_ids[~is_recorded], ~is_recorded
        yield self.recorded, _moved(row_ids[is_recorded], -RECORDED), is_recorded


def _moved(row_ids: Array, offset: int) -> Array:
    """Add an offset to all ids but those of padding."""
    return np.where(row_ids < 0, row_ids, row_ids + offset)


def recorded_rows(batch_size: int, share: float) -> int:
    """Return the number of recorded rows in a batch."""
    return round(share * batch_size)
