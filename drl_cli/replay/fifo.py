"""A queue for on-policy learning. It returns rows in order, each row a fixed number of times, and drops old rows."""

from collections.abc import Mapping

import numpy as np

from drl_cli.replay.base import Sampled, Table
from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Column, Columns, Schema, State, nested, within

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
        """Return the numbers of waiting and dropped rows, and the staleness [versions] of the rows returned last."""
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
