"""FifoConfig: the options of the queue for on-policy learning."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np

from drl_cli.replay.base import Load, Table
from drl_cli.replay.base_config import NO_UPDATE, ReplayConfig, Rows
from drl_cli.replay.builders import Builder, Prioritize, RolloutBuilder
from drl_cli.replay.fifo import FifoTable
from drl_cli.types import Schema
from drl_cli.utils.ranges import Count, Natural

LEAST_AUTO = 2
"""The smallest bound that `replay.max_staleness=auto` chooses: one batch is learned from, and two may wait."""


@dataclass(frozen=True)
class FifoConfig(ReplayConfig):
    """Options of the queue that returns rollouts in order, each row `times` times (fifo) or once (fifo-once).

    `filled` replaces `max_staleness: auto` by a number before any other method reads it.
    """

    capacity: Count
    shards: Literal[1]
    max_staleness: Natural | Literal["auto"]
    times: Count = field(default=1, kw_only=True)
    rows: Rows = field(default="rollouts", kw_only=True)

    shares_frames = True

    @property
    def table(self) -> str:
        return "fifo-once" if self.times == 1 else self.sampler

    @property
    def option(self) -> str:
        return self.sampler

    @property
    def frame_codec(self) -> str:
        return "none"

    @property
    def is_queue(self) -> bool:
        return True

    @property
    def servings(self) -> int:
        return self.times

    @property
    def bound(self) -> int:
        """The maximum age of a row in policy versions."""
        assert self.max_staleness != "auto", "call `filled` first"
        return self.max_staleness

    def filled(self, load: Load) -> Self:
        """Replace `max_staleness: auto` by the smallest bound with which no worker waits.

        The bound is smaller if the queue has no room for so many batches.
        """
        if self.max_staleness != "auto":
            return self
        most = (self.capacity - load.collected) // load.batch_size - (self.times > 1)
        ahead = max(1, min(-(-load.collected // load.batch_size), most))
        return replace(self, max_staleness=max(LEAST_AUTO, _bound(ahead, load.versions_per_batch)))

    def batches_ahead(self, versions_per_batch: int) -> int:
        return max(1, (self.bound + 1) // versions_per_batch - 1)

    def problems(self, load: Load) -> Iterator[str]:
        """Yield a line for each option with which the queue never fills a batch, or loses transitions."""
        batch, versions = load.batch_size, load.versions_per_batch
        ahead = self.batches_ahead(versions)
        if self.rows != "rollouts":
            yield f"replay.rows={self.rows}: replay={self.sampler} serves rollouts; say replay.rows=rollouts"
        if self.bound == 0 and load.is_async:
            yield (
                "replay.max_staleness=0 can't be kept in mode=async, whose workers collect while the trainer learns: "
                "all they collect would be dropped; say replay.max_staleness=1 or mode=sync"
            )
        elif self.bound < _bound(1, versions) and load.is_async:
            yield (
                f"replay.max_staleness={self.max_staleness} can't be kept in mode=async: with "
                f"orchestrator.sample_load_ratio, {versions} policy versions are published while a batch is served "
                f"{self.times} times, and the next batch waits; say replay.max_staleness={_bound(1, versions)}, or "
                "leave out orchestrator.sample_load_ratio"
            )
        if load.block_rows > ahead * batch and load.is_async:
            yield (
                f"a block of {load.block_rows} transitions is more than replay.max_staleness {ahead} x "
                f"trainer.batch_size {batch}: in mode=async its last ones would be too old; lower worker.block_rows or "
                "say mode=sync"
            )
        if load.total_env_steps < batch:
            line = f"total_env_steps={load.total_env_steps} is below trainer.batch_size={batch}: {NO_UPDATE}"
            yield f"{line}; say total_env_steps={batch} or more"
        held = ahead + (self.times > 1)
        if self.capacity < (needed := held * batch + load.collected):
            yield (
                f"replay.capacity={self.capacity} is below {needed} = {held} x trainer.batch_size {batch} that may "
                f"wait + {load.collected} transitions of one collect of all workers: some would be lost"
            )

    def notes(self, load: Load) -> Iterator[str]:
        """Yield a line if the limiter never lets all workers collect at the same time (`QueueLimiter.may_collect`)."""
        size, rows, versions = load.batch_size, load.block_rows, load.versions_per_batch
        num, allowed = load.collected // rows, max(-(-size // rows), self.batches_ahead(versions) * size // rows)
        if load.is_async and allowed < num:
            enough = _bound(-(-num * rows // size), versions)
            yield (
                f"rollouts: only {allowed} of {num} workers collect at the same time, because transitions may not be "
                f"older than replay.max_staleness={self.max_staleness} versions; replay.max_staleness={enough} or "
                "shorter blocks (worker.unroll) let all of them collect"
            )

    def make_table(
        self,
        schema: Schema,
        rng: np.random.Generator,
        num_batches: int,
        most_inserts: int | None = None,
        gamma: float = 1.0,
        n_step: int = 1,
    ) -> Table:
        return FifoTable(schema, self.capacity, self.bound, most_inserts, self.times)

    def make_builder(
        self, n_step: int, gamma: float, reward_scale: float = 1.0, prioritize: Prioritize | None = None
    ) -> tuple[Builder, int]:
        return RolloutBuilder(gamma, reward_scale), 0

    def extra_columns(self) -> Schema:
        return RolloutBuilder.extra_columns


def _bound(ahead: int, versions_per_batch: int) -> int:
    """Return the smallest bound on the age of rows with which `ahead` batches may wait."""
    return versions_per_batch * (ahead + 1) - 1
