"""What every replay table has to do: transitions go in, batches come out. Each is configuration (conf/replay)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from drl_cli.types import Array, Columns


@dataclass(frozen=True)
class Sampled:
    """Batches `[num_batches, batch_size, ...]`, of which there may be fewer than were asked for.

    `sequence` `[num_batches, batch_size]` are the numbers of their rows where the table wants priorities back;
    `dropped` transitions were found too old to be served.
    """

    columns: Columns
    num_batches: int
    sequence: Array | None = None
    dropped: int = 0


class Table(Protocol):
    """What the trajectory manager owns."""

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

    def update_priorities(self, sequence: Array, priorities: Array) -> None:
        """New priorities for the rows of these numbers, both `[num_batches, batch_size]`; of steps `[..., seq_len]`."""

    def stats(self) -> Mapping[str, float]:
        """What is worth reporting: whole numbers are counts, which add up over shards; the rest is averaged."""

    def contents(self) -> Columns:
        """A copy of all stored rows, oldest first, `[rows, ...]`."""
