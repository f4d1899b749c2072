"""The rows of a table as they are at one moment, taken chunk by chunk while inserts go on."""

from collections import defaultdict
from collections.abc import Iterable

from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Columns


class Snapshot:
    """Of these chunks of a store, each a fixed range of `chunk_rows` slots.

    Rows of chunks that were not let go yet are copied before they are overwritten, so that inserting costs at most
    twice as much meanwhile, and memory for what is overwritten.
    """

    def __init__(self, store: RingStore, chunk_rows: int, chunks: Iterable[int]) -> None:
        self.store, self.chunk_rows, self.size = store, chunk_rows, len(store)
        self._waiting = set(chunks)
        self._overwritten: dict[int, list[tuple[Array, Columns]]] = defaultdict(list)
        store.on_write = self._keep

    def take(self, chunk: int) -> Columns:
        """A copy of the rows `[at most chunk_rows, ...]` that a chunk had at the moment, without its empty slots."""
        first = chunk * self.chunk_rows
        rows = {
            name: column[first : min(first + self.chunk_rows, self.size)].copy()
            for name, column in self.store.columns.items()
        }
        for slots, old in reversed(self._overwritten[chunk]):  # what was there first comes last
            for name, column in rows.items():
                column[slots - first] = old[name]
        return rows

    def let_go(self, chunk: int) -> None:
        """A chunk is not asked for any more."""
        self._waiting.remove(chunk)
        self._overwritten.pop(chunk, None)

    def close(self) -> None:
        """No chunk is asked for any more."""
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
    """The largest power of two of rows, at least 1, that has no more than these bytes."""
    return 1 << max(0, (chunk_bytes // row_nbytes).bit_length() - 1)
