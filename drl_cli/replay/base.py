"""What every replay table has to do: transitions go in, batches come out. Each is configuration (conf/replay)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Columns, State


@dataclass(frozen=True)
class Sampled:
    """Batches `[num_batches, batch_size, ...]`, of which there may be fewer than were asked for.

    `row_ids` `[num_batches, batch_size]` are the numbers of their rows where the table wants priorities back;
    `dropped` transitions were found too old to be served.
    """

    columns: Columns
    num_batches: int
    row_ids: Array | None = None
    dropped: int = 0


class Table(Protocol):
    """What the trajectory manager owns.

    It is saved as its `state` and, chunk by chunk, the rows of its `store`.
    """

    @property
    def store(self) -> RingStore:
        """What holds the rows."""

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row when it is saved, roughly."""

    @property
    def inserts(self) -> int:
        """Transitions that ever came in."""

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""

    def __len__(self) -> int:
        """Rows that are stored now."""

    def insert(self, columns: Columns, versions: Array) -> None:
        """Take rows `[rows, ...]` in; `versions` `[transitions]` are those of the parameters that acted.

        A column `priority`, where the worker gives one, is not stored: it is what the sampler begins with.
        """

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Draw batches for a trainer whose newest parameters are of this version."""

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        """New priorities for the rows of these numbers, both `[num_batches, batch_size]`; of steps `[..., seq_len]`."""

    def stats(self) -> Mapping[str, float]:
        """What is worth reporting: whole numbers are counts, which add up over shards; the rest is averaged."""

    def contents(self) -> Columns:
        """A copy of all stored rows, oldest first, `[rows, ...]`."""

    def state(self) -> State:
        """Everything but the rows, to go on exactly; copies."""

    def load_state(self, state: State) -> None:
        """Go on from `state()` of a table like this one, whose rows are then put in `store`."""

    def pack(self, rows: Columns) -> State:
        """Arrays to save for rows of the store."""

    def unpack(self, chunks: Iterable[State]) -> Iterator[Columns]:
        """The rows of the store that `pack` was given, chunk by chunk."""

    def refill(self, rows: Columns) -> None:
        """Take rows of another table's store in as new ones; their versions and priorities are not known.

        Raises ValueError when they have other columns.
        """


class PlainRows:
    """The part of a table whose rows are saved as they are."""

    def __init__(self, store: RingStore) -> None:
        self.store = store

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""
        return sum(column.nbytes for column in self.store.columns.values()) // self.store.capacity

    def pack(self, rows: Columns) -> State:
        """Nothing to do."""
        return rows

    def unpack(self, chunks: Iterable[State]) -> Iterator[Columns]:
        """Nothing to do."""
        return iter(chunks)
