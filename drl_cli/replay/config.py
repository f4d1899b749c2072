"""The config classes of replay tables. Each class makes its own table and builder, and names its own problems."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

import numpy as np

from drl_cli.replay.base import Load, ReplayConfig, Rows, Steps, Table
from drl_cli.replay.builders import Builder, NStepBuilder, Prioritize, SequenceBuilder, sequence_schema
from drl_cli.replay.fifo import FifoConfig
from drl_cli.replay.samplers import (
    FadedTree,
    Prioritized,
    Sampler,
    Uniform,
    faded_tree_bytes,
    sampler_problems,
    tree_bytes,
)
from drl_cli.replay.store import RandomStore, RingStore
from drl_cli.replay.tables import ReplayTable, SequenceTable
from drl_cli.replay.windows import HindsightTable, WindowTable, window_schema
from drl_cli.types import Array, Schema
from drl_cli.utils.outside import import_object
from drl_cli.utils.ranges import Count, Fraction, Natural, Positive, Range


@dataclass(frozen=True)
class UniformConfig(ReplayConfig):
    """Options of tables whose rows can be sampled any number of times.

    A row of `sequences` has `burn_in + seq_len` steps, and rows begin `seq_len - overlap` steps apart. With `windows`
    and `hindsight`, the table stores single transitions. A batch has windows of `seq_len` steps, or n-step transitions
    with other goals.
    """

    remover: Literal["oldest", "random"]
    compress: Literal["none", "lz4"]
    rows: Rows = field(default="transitions", kw_only=True)
    seq_len: Count = field(default=8, kw_only=True)
    burn_in: Natural = field(default=0, kw_only=True)
    overlap: Natural = field(default=0, kw_only=True)
    her_k: Count = field(default=4, kw_only=True)

    eta = 1.0

    @property
    def steps(self) -> Steps | None:
        return Steps(self.burn_in, self.seq_len) if self.rows in ("sequences", "windows") else None

    @property
    def table(self) -> str:
        return "windows" if self.rows == "windows" else super().table

    @property
    def option(self) -> str:
        return self.rows if self.is_indexed else self.table

    @property
    def num_copies(self) -> int:
        return -(-(self.burn_in + self.seq_len) // self.row_stride) if self.rows == "sequences" else 1

    @property
    def changes_goals(self) -> bool:
        return self.rows == "hindsight"

    @property
    def is_indexed(self) -> bool:
        """Whether the table stores single steps, and builds the rows of a batch by an index."""
        return self.rows in ("windows", "hindsight")

    def lacks_steps(self, n_step: int) -> str | None:
        if self.rows == "sequences":
            return "replay.rows=sequences holds sequences"
        if n_step > 1 and not self.is_indexed:
            return f"algo.n_step={n_step} holds sums of rewards; a run with algo.n_step=1 holds single steps"
        return "replay.remover=random mixes the order of the steps" if self.remover == "random" else None

    @property
    def row_stride(self) -> int:
        return self.seq_len - self.overlap if self.rows == "sequences" else 1

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
        n_step: int = 1,
    ) -> Table:
        columns, rows = self.table_schema(schema), self.num_rows
        is_ring = self.remover == "oldest"
        store = RingStore(columns, rows, most_inserts) if is_ring else RandomStore(columns, rows, rng, most_inserts)
        sampler = self._sampler(rng, num_batches, store)
        if self.rows == "hindsight":
            return HindsightTable(store, sampler, n_step, gamma, self.her_k)
        if self.rows == "windows":
            return WindowTable(store, sampler, self.seq_len, gamma, self.eta)
        if self.rows == "sequences":
            return SequenceTable(store, sampler, self.burn_in, self.seq_len - self.overlap, self.eta)
        return ReplayTable(store, sampler)

    def row_steps(self, n_step: int) -> int:
        if self.rows == "sequences":
            return self.seq_len
        is_rated = self.rows == "windows" and self.worker_priorities  # by the n-step returns
        return 1 if self.is_indexed and not is_rated else n_step

    def num_rows_of(self, lengths: Array) -> int:
        if self.rows != "sequences":
            return super().num_rows_of(lengths)
        later = np.maximum(0, lengths - self.seq_len)  # steps after the first row
        return int((1 - (-later // self.row_stride)).sum())

    def problems(self, load: Load) -> Iterator[str]:
        if self.rows == "rollouts":
            yield f"replay.rows=rollouts: replay={self.sampler} can't serve rollouts; say replay=fifo-once"
        if self.rows == "sequences" and self.overlap >= self.seq_len:
            say = f"say replay.overlap={self.seq_len // 2}"
            yield f"replay.overlap={self.overlap} must be below replay.seq_len={self.seq_len}; {say}"
        if self.is_indexed and self.remover == "random":
            yield f"replay.remover=random: replay.rows={self.rows} needs rows in order; say replay.remover=oldest"
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
        if self.rows == "windows" and self.worker_priorities:
            return NStepBuilder(n_step, gamma, reward_scale, prioritize, returns_steps=True), n_step - 1
        return super().make_builder(1 if self.is_indexed else n_step, gamma, reward_scale, prioritize)

    def table_schema(self, schema: Schema) -> Schema:
        if self.rows == "sequences":
            return sequence_schema(schema, self.burn_in + self.seq_len)
        return window_schema(schema) if self.is_indexed else schema

    def table_bytes(self, schema: Schema, most_inserts: int | None = None) -> int:
        index = 4 * self.num_rows if self.is_indexed else 0
        return super().table_bytes(schema, most_inserts) + index

    def _sampler(self, rng: np.random.Generator, num_batches: int, store: RingStore) -> Sampler:
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
    age_factor: Annotated[float, Range(above=0, most=1)] = field(default=1.0, kw_only=True)

    has_priorities = True

    @property
    def worker_priorities(self) -> bool:
        return self.initial_priority == "worker"

    @property
    def factor_of_rows(self) -> float:
        """`age_factor`, raised to the number of transitions from one row of the table to the next."""
        return self.age_factor**self.row_stride

    def problems(self, load: Load) -> Iterator[str]:
        yield from super().problems(load)
        if self.age_factor < 1 and self.remover == "random":
            yield f"replay.age_factor={self.age_factor:g} needs rows in order; say replay.remover=oldest"

    def share(self, shard: int, num_shards: int) -> Self:
        """Return the config of one shard, in which a row ages by `num_shards` transitions with each insert."""
        return replace(super().share(shard, num_shards), age_factor=self.age_factor**num_shards)

    def without_ages(self) -> Self:
        return replace(self, age_factor=1.0)

    def table_bytes(self, schema: Schema, most_inserts: int | None = None) -> int:
        tree = (
            tree_bytes(self.num_rows) if self.age_factor == 1 else faded_tree_bytes(self.num_rows, self.factor_of_rows)
        )
        return super().table_bytes(schema, most_inserts) + tree

    def _sampler(self, rng: np.random.Generator, num_batches: int, store: RingStore) -> Sampler:
        tree = None if self.age_factor == 1 else FadedTree(store, self.factor_of_rows)
        return Prioritized(rng, self.num_rows, num_batches, self.alpha, self.beta, self.eps, self.uniform_mix, tree)


SAMPLERS: Mapping[str, type[ReplayConfig]] = {
    "uniform": UniformConfig,
    "prioritized": PrioritizedConfig,
    "sequences": PrioritizedConfig,
    "fifo": FifoConfig,
    "fifo-once": FifoConfig,
}
"""The config class for each value of `replay.sampler`."""
