"""A queue for on-policy learning. It returns each row once, in order, and drops rows that are too old."""

from collections.abc import Mapping

import numpy as np

from drl_cli.replay.base import Sampled, Table
from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Column, Columns, Schema, State, nested, within


class FifoOnce(Table):
    """Stores the newest `capacity` rows. `waiting` has the ids of the rows that were not returned yet.

    A waiting row is dropped if it is overwritten, or if the trainer's policy is more than `max_staleness` versions
    newer than the policy that acted. All rows of a block have the same version, so all rows of a rollout become too old
    at the same time.
    """

    def __init__(self, schema: Schema, capacity: int, max_staleness: int, most_inserts: int | None = None) -> None:
        super().__init__(RingStore({**schema, "version": Column((), "int64")}, capacity, most_inserts))
        self.max_staleness = max_staleness
        self.waiting = np.empty(0, np.int64)
        self.dropped = self._reported = 0
        self.staleness = np.zeros(1)

    def __len__(self) -> int:
        return len(self.waiting)

    def insert(self, columns: Columns, versions: Array) -> None:
        first = self.store.inserts
        self.store.insert(columns | {"version": versions})
        self._keep(self.store.holds(self.waiting))
        self.waiting = np.append(self.waiting, np.arange(first, self.store.inserts))

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Drop rows that are too old, then return up to `num_batches` batches (maybe none) of the oldest rows.

        `dropped` in the result is the number of rows dropped since the last call.
        """
        age = version - self.store.columns["version"][self.waiting % self.store.capacity]
        self._keep(age <= self.max_staleness)
        num_batches = min(num_batches, len(self.waiting) // batch_size)
        served, self.waiting = np.split(self.waiting, [num_batches * batch_size])
        slots = served % self.store.capacity
        columns = self.store.take(slots.reshape(num_batches, batch_size))
        self.store.release(slots)
        versions = columns.pop("version")
        if num_batches:
            self.staleness = version - versions
        dropped, self._reported = self.dropped - self._reported, self.dropped
        return Sampled(columns, num_batches, dropped=dropped)

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        raise ValueError("replay=fifo-once has no priorities")

    def stats(self) -> Mapping[str, float]:
        """Return the numbers of waiting and dropped rows, and the staleness [versions] of the rows returned last."""
        return {
            "size": len(self),
            "dropped_rows": self.dropped,
            "staleness_mean": float(self.staleness.mean()),
            "staleness_max": float(self.staleness.max()),
        }

    def contents(self) -> Columns:
        """Return a copy of the waiting rows, oldest first."""
        columns = self.store.take(self.waiting % self.store.capacity)
        del columns["version"]
        return columns

    def state(self) -> State:
        return {
            "waiting": self.waiting.copy(),
            "dropped": np.array(self.dropped),
            "reported": np.array(self._reported),
            "staleness": self.staleness.copy(),
            **nested("store", self.store.state()),
        }

    def load_state(self, state: State) -> None:
        self.waiting, self.staleness = state["waiting"].copy(), state["staleness"].copy()
        self.dropped, self._reported = state["dropped"].item(), state["reported"].item()
        self.store.load_state(within(state, "store"))

    def refill(self, rows: Columns) -> None:
        """Do nothing, because on-policy learning needs new rows."""

    def _keep(self, is_kept: Array) -> None:
        self.dropped += len(self.waiting) - int(is_kept.sum())
        self.waiting = self.waiting[is_kept]
