"""Ring arrays of a fixed capacity, allocated once."""

import numpy as np

from drl_cli.types import Array, Columns, Schema, empty_columns, num_rows


class RingStore:
    """The newest `capacity` rows; inserting is at most two slice copies per column."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        self.capacity = capacity
        self.columns = empty_columns(schema, capacity)
        self.inserts = 0

    def __len__(self) -> int:
        return min(self.inserts, self.capacity)

    def insert(self, rows: Columns) -> None:
        """Append rows, overwriting the oldest; raises ValueError when columns are missing or too many at once."""
        count = num_rows(rows)
        if rows.keys() != self.columns.keys():
            raise ValueError(f"replay holds {sorted(self.columns)}, the block has {sorted(rows)}")
        if count > self.capacity:
            raise ValueError(f"a block of {count} rows does not fit replay.capacity={self.capacity}")
        start = self.inserts % self.capacity
        first = min(count, self.capacity - start)
        for name, column in self.columns.items():
            column[start : start + first] = rows[name][:first]
            column[: count - first] = rows[name][first:]
        self.inserts += count

    def take(self, slots: Array) -> Columns:
        """Fresh contiguous columns `[*slots.shape, ...]`."""
        return {name: np.take(column, slots, axis=0) for name, column in self.columns.items()}

    def sequence(self, slots: Array) -> Array:
        """How many rows were inserted before the one in each slot: a row's number, int64, never given twice."""
        newest = self.inserts - 1
        return newest - (newest - slots) % self.capacity

    def holds(self, sequence: Array) -> Array:
        """Whether the rows of these numbers are still there; a row is in slot `number % capacity`."""
        return sequence >= self.inserts - self.capacity

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return sum(column.nbytes for column in self.columns.values())


def row_bytes(schema: Schema) -> int:
    """Bytes of one row."""
    return sum(int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize for column in schema.values())
