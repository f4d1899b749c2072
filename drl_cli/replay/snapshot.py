"""Snapshots of a store: its rows at one moment, which can be read in chunks while inserts continue."""

from collections import defaultdict
from collections.abc import Iterable

from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Columns


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
        """Release a chunk that was read."""
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
