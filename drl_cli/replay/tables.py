"""Tables that keep rows until newer rows overwrite them, and a table with recorded rows beside its own."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from drl_cli.replay.base import Sampled, Table
from drl_cli.replay.builders import mix
from drl_cli.replay.samplers import Sampler
from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Columns, State, nested, num_rows, within


class ReplayTable(Table):
    """A table whose rows can be sampled any number of times until newer rows overwrite them."""

    def __init__(self, store: RingStore, sampler: Sampler) -> None:
        super().__init__(store)
        self.sampler = sampler
        self.stale_priorities = 0

    def __len__(self) -> int:
        return len(self.store)

    @property
    def nbytes(self) -> int:
        return self.store.nbytes + self.sampler.nbytes

    def insert(self, columns: Columns, versions: Array) -> None:
        slots = self.store.insert({name: column for name, column in columns.items() if name != "priority"})
        given = columns.get("priority")
        self.sampler.insert(slots, None if given is None else self._combine(slots, given))

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Sample batches, with a column `weight` if rows have priorities. Raise ValueError if the table is empty."""
        size = len(self.store)
        if size == 0:
            raise ValueError("can't sample from an empty replay")
        slots, weights = self.sampler.sample(size, num_batches, batch_size)
        columns = self.sampler.change(self._take(slots))
        if weights is None:
            return Sampled(columns, num_batches, self._row_ids(slots) if self.returns_ids else None)
        return Sampled(columns | {"weight": weights}, num_batches, self._row_ids(slots))

    def write(self, row_ids: Array, columns: Columns) -> None:
        """Replace columns of rows. Skip padding (-1), and the rows that were overwritten since they were sampled."""
        is_there = self.store.holds(row_ids)
        slots = row_ids[is_there] % self.store.capacity
        self.store.write(slots, {name: column[is_there] for name, column in columns.items()})

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        """Set priorities. Skip and count the rows that were overwritten since they were sampled."""
        is_there = self.store.holds(row_ids)
        self.stale_priorities += int((~is_there).sum())
        slots = row_ids[is_there] % self.store.capacity
        self.sampler.update(slots, self._combine(slots, priorities[is_there]))

    def stats(self) -> Mapping[str, float]:
        stats = self.sampler.stats()
        return {"stale_priorities": self.stale_priorities, **stats} if stats else {}

    def contents(self) -> Columns:
        return self.store.contents()

    def state(self) -> State:
        counts = {"stale_priorities": np.array(self.stale_priorities)}
        return counts | nested("store", self.store.state()) | nested("sampler", self.sampler.state())

    def load_state(self, state: State) -> None:
        self.stale_priorities = state["stale_priorities"].item()
        self.store.load_state(within(state, "store"))
        self.sampler.load_state(within(state, "sampler"))

    def refill(self, rows: Columns) -> None:
        self.store.check_columns(rows)
        newest = {name: column[-self.store.capacity :] for name, column in rows.items()}
        self.insert(newest, np.zeros(self._new_transitions(newest), np.int64))

    def _new_transitions(self, rows: Columns) -> int:
        return num_rows(rows)

    def _take(self, slots: Array) -> Columns:
        return self.store.take(slots)

    def _row_ids(self, slots: Array) -> Array:
        """Return the ids of what a batch's columns have values for: the rows in these slots."""
        return self.store.row_ids(slots)

    def _combine(self, slots: Array, priorities: Array) -> Array:
        """Convert the priorities that a trainer sent for these slots to one priority for each slot, `[n]`."""
        return priorities


class SequenceTable(ReplayTable):
    """A table of sequences. `inserts` counts transitions. The priorities of the steps of a row are mixed into one.

    Rows have `burn_in` steps before their learned steps, and begin `stride` steps apart.
    """

    def __init__(self, store: RingStore, sampler: Sampler, burn_in: int, stride: int, eta: float) -> None:
        super().__init__(store, sampler)
        self.burn_in, self.stride, self.eta = burn_in, stride, eta
        self.transitions = 0

    @property
    def inserts(self) -> int:
        """Number of transitions inserted so far. The number of rows differs, because rows overlap and have padding."""
        return self.transitions

    def insert(self, columns: Columns, versions: Array) -> None:
        super().insert(columns, versions)
        self.transitions += len(versions)

    def stats(self) -> Mapping[str, float]:
        return {"sequences": len(self), **super().stats()}

    def state(self) -> State:
        return super().state() | {"transitions": np.array(self.transitions)}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.transitions = state["transitions"].item()

    def pack(self, rows: Columns) -> State:
        return _renamed(rows, "valid", "mask")

    def unpack(self, chunks: Iterable[State]) -> Iterator[Columns]:
        return (_renamed(rows, "mask", "valid") for rows in chunks)

    def _new_transitions(self, rows: Columns) -> int:
        """Return an estimate of the number of new transitions. It is too low for the first row of an episode."""
        return int(np.minimum(rows["valid"].sum(1), self.stride).sum())

    def _combine(self, slots: Array, priorities: Array) -> Array:
        """Mix the priorities `[n, seq_len]` of the learned steps into one per row, without the padding."""
        return mix(priorities, self.store.columns["valid"][slots, self.burn_in :], self.eta)


def _renamed(columns: Columns, old: str, new: str) -> Columns:
    return {new if name == old else name: column for name, column in columns.items()}


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
    return np.where(row_ids < 0, row_ids, row_ids + offset)


def recorded_rows(batch_size: int, share: float) -> int:
    return round(share * batch_size)
