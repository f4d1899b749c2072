"""Stores: arrays for a limited number of rows, and snapshots of them, which are read in chunks while inserts go on."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from drl_cli.types import Array, Columns, Schema, State, num_rows
from drl_cli.utils.seeding import rng_state, set_rng_state


class RingStore:
    """Stores the newest `capacity` rows. A slot is the position of a row; a row id is unique in the whole run.

    `on_write`, if set, is called with slots `[rows]` before their rows change. If `most_inserts` is
    below the capacity, memory is reserved only for this number of rows, until more are inserted.
    """

    def __init__(self, schema: Schema, capacity: int, most_inserts: int | None = None) -> None:
        self.capacity = capacity
        self.reserved = reserved_rows(capacity, most_inserts)  # rows that the columns have memory for
        self.columns = {name: np.empty((self.reserved, *each.shape), each.dtype) for name, each in schema.items()}
        self.inserts = 0
        self.writes: Array | None = None  # how often each slot was changed after its insertion, int32 `[capacity]`
        self.on_write: Callable[[Array], None] | None = None

    def __len__(self) -> int:
        return min(self.inserts, self.capacity)

    def insert(self, rows: Columns) -> Array:
        """Insert rows in place of the oldest rows, and return their slots `[rows]`.

        Raise ValueError if columns are missing or there are more rows than the capacity.
        """
        count = num_rows(rows)
        if rows.keys() != self.columns.keys() or count > self.capacity:
            raise self._misfit(rows, count)
        start = self.inserts % self.capacity
        first = min(count, self.capacity - start)
        slots = np.arange(start, start + count) % self.capacity
        if self.on_write is not None:
            self.on_write(slots)
        if min(self.inserts + count, self.capacity) > self.reserved:
            self._reserve(self.inserts + count)
        for name, column in self.columns.items():
            column[start : start + first] = rows[name][:first]
            column[: count - first] = rows[name][first:]
        self.inserts += count
        return slots

    def write(self, slots: Array, columns: Columns) -> None:
        """Replace some columns `[n, ...]` of the rows in these slots `[n]`. If a slot repeats, its last values count.

        Raise ValueError if there is no such column, or if its rows have another shape.
        """
        for name, column in columns.items():
            if name not in self.columns:
                raise ValueError(f"replay has no column '{name}'; it has {', '.join(self.columns)}")
            if column.shape != (len(slots), *self.columns[name].shape[1:]):
                raise ValueError(f"column '{name}' has rows {self.columns[name].shape[1:]}, not {column.shape[1:]}")
        if self.on_write is not None:
            self.on_write(slots)
        if self.writes is None:
            self.writes = np.zeros(self.capacity, np.int32)
        self.writes[slots] += 1
        for name, column in columns.items():
            self.columns[name][slots] = column

    def take(self, slots: Array) -> Columns:
        """Return a copy of the rows in these slots, `[*slots.shape, ...]`."""
        return {name: np.take(column, slots, axis=0) for name, column in self.columns.items()}

    def release(self, slots: Array) -> None:
        """Free the objects (frames) of rows that are never read again, by replacing them by b""."""
        columns = [column for column in self.columns.values() if column.dtype == object]
        if columns and self.on_write is not None:
            self.on_write(slots)
        for column in columns:
            column[slots] = b""

    def row_ids(self, slots: Array) -> Array:
        newest = self.inserts - 1
        return newest - (newest - slots) % self.capacity

    def holds(self, row_ids: Array) -> Array:
        """Return, for each row id, whether the row is still in the store, bool `[...]`. The id -1 is no row."""
        return row_ids >= max(0, self.inserts - self.capacity)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def contents(self) -> Columns:
        """Return a copy of all rows `[rows, ...]`, oldest first."""
        return self.take(np.arange(self.inserts - len(self), self.inserts) % self.capacity)

    def stamps(self, chunk_rows: int) -> list[int]:
        """Return a number for each chunk that is not empty. The number rises whenever a row of the chunk changes."""
        first = np.arange(0, len(self), chunk_rows)
        slots = np.minimum(chunk_rows, self.capacity - first)
        turns, position = divmod(self.inserts, self.capacity)
        stamps: list[int] = (turns * slots + np.clip(position - first, 0, slots) + self._changes(first)).tolist()
        return stamps

    def _changes(self, first: Array) -> Array:
        """Return, for each chunk, how often `write` changed a row in it. `first` has the first slot of each chunk."""
        zeros = np.zeros(len(first), np.int64)
        return zeros if self.writes is None or not len(first) else np.add.reduceat(self.writes, first, dtype=np.int64)

    def state(self) -> State:
        return {"inserts": np.array(self.inserts)}

    def load_state(self, state: State) -> None:
        """Restore the `state()` of a store of the same capacity. The caller must call `fill` afterwards."""
        self.inserts = state["inserts"].item()

    def fill(self, chunks: Iterable[Columns]) -> None:
        """Write saved rows, beginning at the first slot. Raise ValueError if columns differ from the store's."""
        start = 0
        self._reserve(len(self))
        for rows in chunks:
            self.check_columns(rows)
            stop = start + num_rows(rows)
            for name, column in self.columns.items():
                column[start:stop] = rows[name]
            start = stop
        assert start == len(self), f"{start} rows for {len(self)} slots"

    def check_columns(self, rows: Columns) -> None:
        """Raise ValueError if rows `[rows, ...]` do not have exactly the columns of this store."""
        own, given = ({name: f"{c.dtype}{list(c.shape[1:])}" for name, c in cs.items()} for cs in (self.columns, rows))
        if own != given:
            wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
            texts = (f"{name}: {given.get(name, 'none')}, not {own.get(name, 'none')}" for name in wrong)
            raise ValueError("the saved replay has other columns than this run: " + "; ".join(texts))

    def _reserve(self, inserts: int) -> None:
        """Reserve memory for all rows that are stored after this number of inserts."""
        rows = min(inserts, self.capacity)
        if rows <= self.reserved:
            return
        for name, column in self.columns.items():
            self.columns[name] = np.empty((rows, *column.shape[1:]), column.dtype)
            self.columns[name][: len(column)] = column
        self.reserved = rows

    def _misfit(self, rows: Columns, count: int) -> ValueError:
        if rows.keys() != self.columns.keys():
            return ValueError(f"replay holds {sorted(self.columns)}, the block has {sorted(rows)}")
        return ValueError(f"a block of {count} rows does not fit replay.capacity={self.capacity}")


class RandomStore(RingStore):
    """A store that, when full, overwrites random distinct slots instead of the oldest slots.

    A row stays for `capacity` inserts on average, as in a ring, but the age of rows is distributed exponentially. As
    in a ring, the k-th row in slot s, counted from 0, has the row id s + k * capacity.
    """

    def __init__(
        self, schema: Schema, capacity: int, rng: np.random.Generator, most_inserts: int | None = None
    ) -> None:
        super().__init__(schema, capacity, most_inserts)
        self.rng = rng
        self.numbers = np.arange(capacity) - capacity

    def insert(self, rows: Columns) -> Array:
        count, size = num_rows(rows), len(self)
        if rows.keys() != self.columns.keys() or count > self.capacity:
            raise self._misfit(rows, count)
        fill = min(count, self.capacity - size)
        first = np.arange(size, size + fill)
        rest = self.rng.choice(self.capacity, count - fill, replace=False, shuffle=False)
        chosen = np.concatenate([first, rest])
        if self.on_write is not None:
            self.on_write(chosen)
        self._reserve(self.inserts + count)
        for slots, part in ((first, slice(0, fill)), (rest, slice(fill, count))):
            for name, column in self.columns.items():
                column[slots] = rows[name][part]
            self.numbers[slots] += self.capacity
        self.inserts += count
        return chosen

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.numbers.nbytes

    def row_ids(self, slots: Array) -> Array:
        row_ids: Array = self.numbers[slots]
        return row_ids

    def holds(self, row_ids: Array) -> Array:
        is_there: Array = self.numbers[row_ids % self.capacity] == row_ids
        return is_there

    def contents(self) -> Columns:
        """Return a copy of all rows `[rows, ...]` in the order of their slots."""
        return self.take(np.arange(len(self)))

    def stamps(self, chunk_rows: int) -> list[int]:
        turns = self.numbers // self.capacity + 1
        first = np.arange(0, self.capacity, chunk_rows)
        stamps: list[int] = (np.add.reduceat(turns, first) + self._changes(first)).tolist()
        return stamps[: -(-len(self) // chunk_rows)]

    def state(self) -> State:
        return super().state() | {"numbers": self.numbers.copy(), "rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.numbers[:] = state["numbers"]
        set_rng_state(self.rng, state["rng"])


def reserved_rows(capacity: int, most_inserts: int | None = None) -> int:
    return capacity if most_inserts is None else min(capacity, most_inserts)


def row_bytes(schema: Schema) -> int:
    return sum(int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize for column in schema.values())


class Snapshot:
    """A snapshot of some chunks of a store. Each chunk is a fixed range of `chunk_rows` slots.

    Until a chunk is released, its rows are copied before new rows overwrite them. During this time, inserts take at
    most twice as long, and the copies need memory.
    """

    def __init__(self, store: RingStore, chunk_rows: int, chunks: Iterable[int]) -> None:
        self.store, self.chunk_rows, self.size = store, chunk_rows, len(store)
        self._waiting = set(chunks)
        self._overwritten: dict[int, list[tuple[Array, Columns]]] = defaultdict(list)
        store.on_write = self._keep

    def take(self, chunk: int) -> Columns:
        """Return a copy of the rows that a chunk had at the moment of the snapshot, without empty slots."""
        first = chunk * self.chunk_rows
        rows = {
            name: column[first : min(first + self.chunk_rows, self.size)].copy()
            for name, column in self.store.columns.items()
        }
        for slots, old in reversed(self._overwritten[chunk]):  # newest first, because the oldest copy is the right one
            for name, column in rows.items():
                column[slots - first] = old[name]
        return rows

    def let_go(self, chunk: int) -> None:
        self._waiting.remove(chunk)
        self._overwritten.pop(chunk, None)

    def close(self) -> None:
        self._waiting.clear()
        self._overwritten.clear()
        self.store.on_write = None

    def _keep(self, slots: Array) -> None:
        slots = slots[slots < self.size]
        chunks = slots // self.chunk_rows
        for chunk in self._waiting.intersection(chunks.tolist()):
            mine = slots[chunks == chunk]
            self._overwritten[chunk].append((mine, self.store.take(mine)))


def rows_per_chunk(row_nbytes: int, chunk_bytes: int) -> int:
    """Return the largest power of two, at least 1, such that this number of rows fits into a chunk."""
    return 1 << max(0, (chunk_bytes // row_nbytes).bit_length() - 1)
