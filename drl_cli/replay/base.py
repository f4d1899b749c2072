"""The interface of replay tables: Table stores transitions and returns batches, ReplayConfig has the options."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from drl_cli.replay.builders import Builder, NStepBuilder, Prioritize
from drl_cli.replay.store import RingStore, reserved_rows, row_bytes
from drl_cli.types import Array, Columns, Schema, State
from drl_cli.utils.ranges import Count, name_or_class


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


MOST_TRANSITIONS = 1_000_000
"""Capacity with `replay.capacity=null`, unless fewer transitions fit in memory."""
Rows: TypeAlias = Literal["transitions", "sequences", "windows", "hindsight", "rollouts"]
NO_UPDATE = "no update would ever be made"


@dataclass(frozen=True)
class ReplayConfig:
    """Options of every replay table. The class attributes and properties describe the table to the other parts."""

    sampler: Annotated[str, name_or_class("uniform", "prioritized", "fifo", "fifo-once", "sequences")]
    capacity: Count | None
    shards: Count | None

    is_queue: ClassVar[bool] = False
    """Whether the table serves all rows in order, and only rows that are not too old."""
    has_priorities: ClassVar[bool] = False
    """Whether the trainer returns new priorities of the rows."""
    shares_frames: ClassVar[bool] = False
    """Whether the rows of a batch share most frames, so that batches contain each frame once."""

    @property
    def num_transitions(self) -> int:
        """Capacity in transitions; preflight replaces null by a number that fits in memory."""
        return self.capacity or MOST_TRANSITIONS

    @property
    def row_stride(self) -> int:
        """The number of transitions from the start of a row to the start of the next row."""
        return 1

    @property
    def num_rows(self) -> int:
        """Capacity in rows, enough for `capacity` transitions if episodes are long."""
        return self.num_transitions // self.row_stride

    @property
    def table(self) -> str:
        """The name that an algorithm's `TABLES` must contain: sequences or windows, or the sampler of single steps."""
        return "sequences" if self.steps else "uniform" if self.outside_sampler else self.sampler

    @property
    def num_copies(self) -> int:
        """The maximum number of rows that contain the same step."""
        return 1

    @property
    def option(self) -> str:
        """The word after `replay=`, for messages."""
        return self.table

    @property
    def outside_sampler(self) -> str | None:
        """The import path of the user's sampler, or None."""
        return self.sampler if ":" in self.sampler else None

    @property
    def frame_codec(self) -> str | None:
        """The codec of image frames, or None if rows contain whole image stacks."""
        return None

    def lacks_steps(self, n_step: int) -> str | None:
        """Return why the rows of a table are not single steps in order of time, or None if they are."""
        return f"replay={self.option} is a queue that keeps no transitions"

    @property
    def servings(self) -> int:
        """How often a queue serves each row."""
        return 1

    def filled(self, load: Load) -> Self:
        """Return the options with numbers in place of `auto`."""
        return self

    def batches_ahead(self, versions_per_batch: int) -> int:
        """Return how many batches may wait in a queue, so that no row gets too old."""
        raise NotImplementedError

    @property
    def worker_priorities(self) -> bool:
        """Whether workers compute the first priorities of their rows."""
        return False

    @property
    def changes_goals(self) -> bool:
        """Whether the table needs the environment's `compute_reward`, to replace the goals of rows."""
        return False

    @property
    def steps(self) -> Steps | None:
        """The steps of a row `[B, steps.length, ...]`, or None if a row is one transition."""
        return None

    def row_steps(self, n_step: int) -> int:
        """Return the number of environment steps that one row spans."""
        return n_step

    def num_rows_of(self, lengths: Array) -> int:
        """Return the number of rows that the builder makes of episodes with these numbers of steps, `[episodes]`."""
        return int(lengths.sum())

    def problems(self, load: Load) -> Iterator[str]:
        """Yield a line for each option that does not fit the other options or the load."""
        yield from ()

    def notes(self, load: Load) -> Iterator[str]:
        """Yield a line for each option with which the run works, but slower than its user may expect."""
        yield from ()

    def make_table(
        self,
        schema: Schema,
        rng: np.random.Generator,
        num_batches: int,
        most_inserts: int | None = None,
        gamma: float = 1.0,
        n_step: int = 1,
    ) -> Table:
        """Make the table of one shard, given the schema of transitions.

        A complete run samples at least `num_batches` batches from this table. Memory is reserved for the whole
        capacity, or for `most_inserts` rows if this number is smaller. Windows need `gamma`, the discount of a step.
        Hindsight also needs `n_step`.
        """
        raise NotImplementedError

    def make_builder(
        self, n_step: int, gamma: float, reward_scale: float = 1.0, prioritize: Prioritize | None = None
    ) -> tuple[Builder, int]:
        """Return a worker's builder, and how many steps back an incomplete row of the builder can begin."""
        return NStepBuilder(n_step, gamma, reward_scale, prioritize), n_step - 1

    def extra_columns(self) -> Schema:
        """Return the columns that the builder adds to the columns of transitions."""
        return {}

    def table_schema(self, schema: Schema) -> Schema:
        """Return the columns of a table, given the schema of transitions."""
        return schema

    def table_bytes(self, schema: Schema, most_inserts: int | None = None) -> int:
        """Return the bytes that the table of one shard allocates."""
        return reserved_rows(self.num_rows, most_inserts) * row_bytes(self.table_schema(schema))

    def without_ages(self) -> Self:
        """Return the config of a table of recorded rows, whose order says nothing about their age."""
        return self

    def share(self, shard: int, num_shards: int) -> Self:
        """Return the config of one shard, with an equal share of the capacity. The first shards get the remainder."""
        capacity, rest = divmod(self.num_transitions, num_shards)
        return replace(self, capacity=capacity + (shard < rest))
