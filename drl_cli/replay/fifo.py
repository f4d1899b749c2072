"""The queue for on-policy learning. It returns rows in order, each a fixed number of times, and drops old rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np

from drl_cli.replay.base import NO_UPDATE, Load, ReplayConfig, Rows, Sampled, Table
from drl_cli.replay.builders import Builder, Prioritize, RolloutBuilder
from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Column, Columns, Schema, State, nested, within
from drl_cli.utils.ranges import Count, Natural

NONE = np.empty(0, np.int64)


class FifoTable(Table):
    """Stores the newest `capacity` rows. `waiting` has the ids of the rows that were not returned yet.

    The oldest waiting rows become the next batch. A batch is returned `times` times, one after another. `batch` has the
    ids of the rows of the batch that will be returned `repeats` more times.

    A row is dropped if it is overwritten, or if the trainer's policy is more than `max_staleness` versions newer than
    the policy that acted. All rows of a block have the same version, so all rows of a rollout become too old at the
    same time. If a row of `batch` is dropped, the whole batch is dropped.
    """

    def __init__(
        self, schema: Schema, capacity: int, max_staleness: int, most_inserts: int | None = None, times: int = 1
    ) -> None:
        super().__init__(RingStore({**schema, "version": Column((), "int64")}, capacity, most_inserts))
        self.max_staleness, self.times = max_staleness, times
        self.waiting = self.batch = NONE
        self.repeats = self.dropped = 0
        self.staleness = np.zeros(1)

    def __len__(self) -> int:
        return len(self.waiting)

    def insert(self, columns: Columns, versions: Array) -> None:
        first = self.store.inserts
        self.store.insert(columns | {"version": versions})
        self._keep(self.store.holds(self.waiting), bool(self.store.holds(self.batch).all()))
        self.waiting = np.append(self.waiting, np.arange(first, self.store.inserts))

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Drop rows that are too old, then return up to `num_batches` batches (maybe none) of the oldest rows."""
        fresh, fresh_batch = (self._versions(ids) >= version - self.max_staleness for ids in (self.waiting, self.batch))
        self.store.release(self._slots(self.waiting[~fresh]))
        self._keep(fresh, len(self.batch) == batch_size and bool(fresh_batch.all()))
        served, done = np.empty((num_batches, batch_size), np.int64), list[Array]()
        num = 0
        while num < num_batches and (self.repeats or len(self.waiting) >= batch_size):
            if self.repeats == 0:
                self.batch, self.waiting = np.split(self.waiting, [batch_size])
                self.repeats = self.times
            served[num] = self.batch
            num, self.repeats = num + 1, self.repeats - 1
            if self.repeats == 0:
                done.append(self.batch)
                self.batch = NONE
        columns = self.store.take(self._slots(served[:num]))
        versions = columns.pop("version")
        if num:
            self.staleness = version - versions
        self.store.release(self._slots(np.concatenate([NONE, *done])))
        return Sampled(columns, num, waiting=len(self.waiting), repeats=self.repeats)

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        raise ValueError("a queue has no priorities")

    def stats(self) -> Mapping[str, float]:
        return {
            "size": len(self),
            "dropped_rows": self.dropped,
            "staleness_mean": float(self.staleness.mean()),
            "staleness_max": float(self.staleness.max()),
        }

    def contents(self) -> Columns:
        """Return a copy of the rows that will be returned again or for the first time, oldest first."""
        columns = self.store.take(self._slots(np.append(self.batch, self.waiting)))
        del columns["version"]
        return columns

    def state(self) -> State:
        return {
            "waiting": self.waiting.copy(),
            "batch": self.batch.copy(),
            "repeats": np.array(self.repeats),
            "dropped": np.array(self.dropped),
            "staleness": self.staleness.copy(),
            **nested("store", self.store.state()),
        }

    def load_state(self, state: State) -> None:
        self.waiting, self.batch, self.staleness = (state[name].copy() for name in ("waiting", "batch", "staleness"))
        self.repeats, self.dropped = state["repeats"].item(), state["dropped"].item()
        self.store.load_state(within(state, "store"))

    def refill(self, rows: Columns) -> None:
        """Do nothing, because on-policy learning needs new rows."""

    def _keep(self, is_kept: Array, keeps_batch: bool) -> None:
        """Drop and count the waiting rows where `is_kept` is False and, without `keeps_batch`, the rows of `batch`."""
        self.dropped += len(self.waiting) - int(is_kept.sum())
        self.waiting = self.waiting[is_kept]
        if self.repeats and not keeps_batch:
            self.dropped += len(self.batch)
            self.batch, self.repeats = NONE, 0

    def _slots(self, ids: Array) -> Array:
        slots: Array = ids % self.store.capacity
        return slots

    def _versions(self, ids: Array) -> Array:
        versions: Array = self.store.columns["version"][self._slots(ids)]
        return versions


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

    is_queue = shares_frames = True

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
    def servings(self) -> int:
        return self.times

    @property
    def bound(self) -> int:
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
    return versions_per_batch * (ahead + 1) - 1
