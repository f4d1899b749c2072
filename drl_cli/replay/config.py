"""The config of the replay table. Each config class makes its own table and builder, and names its own problems."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from drl_cli.replay.base import Load, Steps, Table
from drl_cli.replay.builders import Builder, NStepBuilder, Prioritize, RolloutBuilder
from drl_cli.replay.fifo import FifoOnce
from drl_cli.replay.samplers import Prioritized, Sampler, Uniform, sampler_problems
from drl_cli.replay.sequences import SequenceBuilder, sequence_schema
from drl_cli.replay.store import RandomStore, RingStore, reserved_rows, row_bytes
from drl_cli.replay.sum_tree import tree_bytes
from drl_cli.replay.tables import ReplayTable, SequenceTable
from drl_cli.replay.windows import WindowTable, window_schema
from drl_cli.types import Schema
from drl_cli.utils.outside import import_object
from drl_cli.utils.ranges import Count, Fraction, NameOrClass, Natural, Positive

MOST_TRANSITIONS = 1_000_000
"""Capacity with `replay.capacity=null`, unless fewer transitions fit in memory."""
NO_UPDATE = "no update would ever be made"


@dataclass(frozen=True)
class ReplayConfig:
    """Options of every replay table. The class attributes and properties describe the table to the other parts."""

    sampler: Annotated[str, NameOrClass(("uniform", "prioritized", "fifo-once", "sequences"))]
    capacity: Count | None
    shards: Count | None

    has_priorities: ClassVar[bool] = False
    """Whether the trainer returns new priorities of the rows."""

    @property
    def num_transitions(self) -> int:
        """Capacity in transitions; preflight replaces null by a number that fits in memory."""
        return self.capacity or MOST_TRANSITIONS

    @property
    def num_rows(self) -> int:
        """Capacity in rows. A row is one transition, except in SequencesConfig."""
        return self.num_transitions

    @property
    def table(self) -> str:
        """The name that an algorithm's `TABLES` must contain: sequences if rows have several steps, or the sampler."""
        return "sequences" if self.steps else "uniform" if self.outside_sampler else self.sampler

    @property
    def outside_sampler(self) -> str | None:
        """The import path of the user's sampler, or None."""
        return self.sampler if ":" in self.sampler else None

    @property
    def frame_codec(self) -> str | None:
        """The codec of image frames, or None if rows contain whole image stacks."""
        return None

    @property
    def versions_ahead(self) -> int | None:
        """The number of policy versions that workers may be ahead of the trainer, or None if rows never get too old."""
        return None

    @property
    def worker_priorities(self) -> bool:
        """Whether workers compute the first priorities of their rows."""
        return False

    @property
    def steps(self) -> Steps | None:
        """The steps of a row `[B, steps.length, ...]`, or None if a row is one transition."""
        return None

    def row_steps(self, n_step: int) -> int:
        """Return the number of environment steps that one row spans."""
        return n_step

    def problems(self, load: Load) -> Iterator[str]:
        """Yield a line for each option that does not fit the other options or the load."""
        yield from ()

    def make_table(
        self,
        schema: Schema,
        rng: np.random.Generator,
        num_batches: int,
        most_inserts: int | None = None,
        gamma: float = 1.0,
    ) -> Table:
        """Make the table of one shard, given the schema of transitions.

        A complete run samples at least `num_batches` batches from this table. Memory is reserved for the whole
        capacity, or for `most_inserts` rows if this number is smaller. Windows need `gamma`, the discount of a step.
        """
        raise NotImplementedError

    def make_builder(
        self, n_step: int, gamma: float, reward_scale: float = 1.0, prioritize: Prioritize | None = None
    ) -> tuple[Builder, int]:
        """Make the builder of a worker. Return it and the number of the latest steps that its open rows may contain."""
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

    def share(self, shard: int, num_shards: int) -> Self:
        """Return the config of one shard, with an equal share of the capacity. The first shards get the remainder."""
        capacity, rest = divmod(self.num_transitions, num_shards)
        return replace(self, capacity=capacity + (shard < rest))


@dataclass(frozen=True)
class UniformConfig(ReplayConfig):
    """Options of tables whose rows can be sampled any number of times.

    A row of `sequences` has `burn_in + seq_len` steps, and rows begin `seq_len - overlap` steps apart. With `windows`,
    the table stores single transitions, and a batch has windows of `seq_len` steps.
    """

    remover: Literal["oldest", "random"]
    compress: Literal["none", "lz4"]
    rows: Literal["transitions", "sequences", "windows"] = field(default="transitions", kw_only=True)
    seq_len: Count = field(default=8, kw_only=True)
    burn_in: Natural = field(default=0, kw_only=True)
    overlap: Natural = field(default=0, kw_only=True)

    eta = 1.0

    @property
    def steps(self) -> Steps | None:
        return None if self.rows == "transitions" else Steps(self.burn_in, self.seq_len)

    @property
    def num_rows(self) -> int:
        """Capacity in rows, enough for `capacity` transitions if episodes are long."""
        stride = self.seq_len - self.overlap if self.rows == "sequences" else 1
        return self.num_transitions // stride

    @property
    def frame_codec(self) -> str | None:
        return self.compress

    def make_table(
        self,
        schema: Schema,
        rng: np.random.Generator,
        num_batches: int,
        most_inserts: int | None = None,
        gamma: float = 1.0,
    ) -> Table:
        columns, rows = self.table_schema(schema), self.num_rows
        is_ring = self.remover == "oldest"
        store = RingStore(columns, rows, most_inserts) if is_ring else RandomStore(columns, rows, rng, most_inserts)
        sampler = self._sampler(rng, num_batches)
        if self.rows == "windows":
            return WindowTable(store, sampler, self.seq_len, gamma, self.eta)
        if self.rows == "sequences":
            return SequenceTable(store, sampler, self.burn_in, self.seq_len - self.overlap, self.eta)
        return ReplayTable(store, sampler)

    def row_steps(self, n_step: int) -> int:
        return self.seq_len if self.rows == "sequences" else 1 if self.rows == "windows" else n_step

    def problems(self, load: Load) -> Iterator[str]:
        if self.rows == "sequences" and self.overlap >= self.seq_len:
            yield f"replay.overlap={self.overlap} must be below replay.seq_len={self.seq_len}"
        if self.rows == "windows" and self.remover == "random":
            yield "replay.remover=random: replay.rows=windows needs rows in order; say replay.remover=oldest"
        if self.rows == "windows" and self.burn_in:
            yield f"replay.burn_in={self.burn_in}: replay.rows=windows has no burn-in; say replay.burn_in=0"
        if self.outside_sampler:
            yield from sampler_problems(self.sampler, self.has_priorities)

    def make_builder(
        self, n_step: int, gamma: float, reward_scale: float = 1.0, prioritize: Prioritize | None = None
    ) -> tuple[Builder, int]:
        if self.rows == "sequences":
            builder = SequenceBuilder(self.seq_len, self.burn_in, self.overlap, gamma, reward_scale, prioritize)
            return builder, self.burn_in + self.seq_len
        return super().make_builder(1 if self.rows == "windows" else n_step, gamma, reward_scale, prioritize)

    def table_schema(self, schema: Schema) -> Schema:
        if self.rows == "sequences":
            return sequence_schema(schema, self.burn_in + self.seq_len)
        return window_schema(schema) if self.rows == "windows" else schema

    def table_bytes(self, schema: Schema, most_inserts: int | None = None) -> int:
        index = 4 * self.num_rows if self.rows == "windows" else 0
        return super().table_bytes(schema, most_inserts) + index

    def _sampler(self, rng: np.random.Generator, num_batches: int) -> Sampler:
        made: Sampler = import_object(self.sampler)(rng) if self.outside_sampler else Uniform(rng)
        return made


@dataclass(frozen=True)
class PrioritizedConfig(UniformConfig):
    """Options of prioritized sampling."""

    initial_priority: Literal["max", "worker"]
    alpha: Fraction
    beta: Fraction
    eps: Positive
    uniform_mix: Fraction
    eta: Fraction = field(default=0.9, kw_only=True)

    has_priorities = True

    @property
    def worker_priorities(self) -> bool:
        return self.initial_priority == "worker"

    def table_bytes(self, schema: Schema, most_inserts: int | None = None) -> int:
        return super().table_bytes(schema, most_inserts) + tree_bytes(self.num_rows)

    def _sampler(self, rng: np.random.Generator, num_batches: int) -> Sampler:
        return Prioritized(rng, self.num_rows, num_batches, self.alpha, self.beta, self.eps, self.uniform_mix)


@dataclass(frozen=True)
class SequencesConfig(PrioritizedConfig):
    """Options of prioritized sequences."""

    rows: Literal["transitions", "sequences", "windows"] = field(default="sequences", kw_only=True)


@dataclass(frozen=True)
class FifoConfig(ReplayConfig):
    """Options of the queue that returns each row once."""

    capacity: Count
    shards: Literal[1]
    max_staleness: Natural

    @property
    def versions_ahead(self) -> int:
        return max(1, self.max_staleness)

    def problems(self, load: Load) -> Iterator[str]:
        """Yield a line for each option with which the queue never fills a batch, or loses transitions."""
        batch, ahead = load.batch_size, self.versions_ahead
        if self.max_staleness == 0 and load.is_async:
            yield (
                "replay.max_staleness=0 can't be kept in mode=async, whose workers collect while the trainer learns: "
                "all they collect would be dropped; say replay.max_staleness=1 or mode=sync"
            )
        if load.block_rows > ahead * batch and load.is_async:
            yield (
                f"a block of {load.block_rows} transitions is more than replay.max_staleness {ahead} x "
                f"trainer.batch_size {batch}: in mode=async its last ones would be too old; lower worker.block_rows or "
                "say mode=sync"
            )
        if load.total_env_steps < batch:
            yield f"total_env_steps={load.total_env_steps} is below trainer.batch_size={batch}: {NO_UPDATE}"
        if self.capacity < (needed := ahead * batch + load.collected):
            yield (
                f"replay.capacity={self.capacity} is below {needed} = {ahead} x trainer.batch_size {batch} that may "
                f"wait + {load.collected} transitions of one collect of all workers: some would be lost"
            )

    def make_table(
        self,
        schema: Schema,
        rng: np.random.Generator,
        num_batches: int,
        most_inserts: int | None = None,
        gamma: float = 1.0,
    ) -> Table:
        return FifoOnce(schema, self.capacity, self.max_staleness, most_inserts)

    def make_builder(
        self, n_step: int, gamma: float, reward_scale: float = 1.0, prioritize: Prioritize | None = None
    ) -> tuple[Builder, int]:
        return RolloutBuilder(gamma, reward_scale), 0

    def extra_columns(self) -> Schema:
        return RolloutBuilder.extra_columns


SAMPLERS: Mapping[str, type[ReplayConfig]] = {
    "uniform": UniformConfig,
    "prioritized": PrioritizedConfig,
    "sequences": SequencesConfig,
    "fifo-once": FifoConfig,
}
"""The config class for each value of `replay.sampler`."""
