"""The interface of replay tables, which store inserted transitions and return sampled batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Columns, State


class Steps(NamedTuple):
    """The steps of a row: the first `burn_in` warm up the recurrent state, the other `seq_len` are learned."""

    burn_in: int
    seq_len: int

    @property
    def length(self) -> int:
        return self.burn_in + self.seq_len


class Load(NamedTuple):
    """What the rest of the config asks of a table: sizes in transitions."""

    total_env_steps: int
    batch_size: int
    block_rows: int
    """Transitions in one block."""
    collected: int
    """Transitions in one collect call of all workers."""
    is_async: bool
    versions_per_batch: int
    """Policy versions that are published while a queue serves one batch."""


@dataclass(frozen=True)
class Sampled:
    """Sampled batches `[num_batches, batch_size, ...]`; there may be fewer batches than requested.

    `row_ids` `[num_batches, batch_size]` are set if these rows get new priorities or columns. Windows have the ids of
    their steps, `[num_batches, batch_size, length]`, and -1 for padding. After the draw, a queue has `waiting`
    transitions that it has not returned yet, and will return the last batch `repeats` more times.
    """

    columns: Columns
    num_batches: int
    row_ids: Array | None = None
    waiting: int = 0
    repeats: int = 0


class Table(ABC):
    """A replay table in a trajectory manager. A checkpoint contains its `state` and the rows of its `store`."""

    returns_ids = False
    """Whether batches have `row_ids` without priorities, because the algorithm writes to their rows."""

    def __init__(self, store: RingStore) -> None:
        self.store = store

    @property
    def row_nbytes(self) -> int:
        """Approximate size of a saved row in bytes."""
        return sum(column[:1].nbytes for column in self.store.columns.values())

    @property
    def inserts(self) -> int:
        """Number of transitions inserted so far."""
        return self.store.inserts

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes."""
        return self.store.nbytes

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows that can be sampled now."""

    @abstractmethod
    def insert(self, columns: Columns, versions: Array) -> None:
        """Insert rows `[rows, ...]`. `versions` `[transitions]` has the policy version that chose each action.

        The optional column `priority` has initial priorities for the sampler and is not stored. Raise ValueError if
        columns are missing or there are more rows than the capacity.
        """

    @abstractmethod
    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Sample batches for a trainer whose newest policy has this version."""

    @abstractmethod
    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        """Set the priorities `[num_batches, batch_size]` of rows, or `[..., seq_len]` for the steps of sequences."""

    def write(self, row_ids: Array, columns: Columns) -> None:
        """Replace columns `[num_batches, batch_size, ...]` of sampled rows. Raise ValueError if this is impossible."""
        raise ValueError(f"the rows of a {type(self).__name__} can't be changed; WRITES needs replay=uniform")

    @abstractmethod
    def stats(self) -> Mapping[str, float]:
        """Return values to log. Integers are summed over the shards, and floats are averaged."""

    @abstractmethod
    def contents(self) -> Columns:
        """Return a copy of all rows `[rows, ...]`, oldest first."""

    @abstractmethod
    def state(self) -> State:
        """Return a copy of everything except the rows."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Restore the `state()` of a table with the same config. The caller then fills `store`."""

    def pack(self, rows: Columns) -> State:
        """Convert rows of the store to arrays that can be saved."""
        return rows

    def unpack(self, chunks: Iterable[State]) -> Iterator[Columns]:
        """Convert saved chunks back to rows of the store: the inverse of `pack`."""
        return iter(chunks)

    @abstractmethod
    def refill(self, rows: Columns) -> None:
        """Insert rows from the store of another table as new rows, with unknown versions and priorities.

        Raise ValueError if the rows have other columns than this table.
        """
