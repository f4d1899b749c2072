"""A queue of transitions for on-policy learning: each is served once, in order, and only while it is fresh."""

from collections.abc import Mapping

import numpy as np

from drl_cli.replay.base import PlainRows, Sampled
from drl_cli.replay.config import FifoConfig
from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Column, Columns, Schema, State, nested, within


class FifoOnce(PlainRows):
    """The newest `capacity` rows, and which of them wait to be served; those pushed out or too old are dropped.

    A row is too old when more than `max_staleness` parameter versions came after the one that acted. All rows of a
    block have one version, so that a dropped row never leaves a hole in a rollout.
    """

    def __init__(self, schema: Schema, config: FifoConfig) -> None:
        self.max_staleness = config.max_staleness
        super().__init__(RingStore({**schema, "version": Column((), "int64")}, config.capacity))
        self.waiting = np.empty(0, np.int64)
        self.dropped = 0
        self.staleness = np.zeros(1)
        self._reported = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def insert(self, columns: Columns, versions: Array) -> None:
        """Append rows `[rows, ...]` made with parameters `versions` `[rows]`; beyond capacity the oldest are dropped.

        Raises ValueError when columns are missing or too many rows come at once.
        """
        first = self.store.inserts
        self.store.insert(columns | {"version": versions})
        self._keep(self.store.holds(self.waiting))
        self.waiting = np.append(self.waiting, np.arange(first, self.store.inserts))

    def sample(self, num_batches: int, batch_size: int, version: int) -> Sampled:
        """Up to `num_batches` whole batches of the oldest rows, after those too old for `version` are dropped.

        `num_batches` of the result may be 0; its `dropped` counts what was dropped since the call before.
        """
        age = version - self.store.columns["version"][self._slots(self.waiting)]
        self._keep(age <= self.max_staleness)
        num_batches = min(num_batches, len(self.waiting) // batch_size)
        served, self.waiting = np.split(self.waiting, [num_batches * batch_size])
        columns = self.store.take(self._slots(served).reshape(num_batches, batch_size))
        if num_batches:
            self.staleness = version - columns["version"]
        del columns["version"]
        dropped, self._reported = self.dropped - self._reported, self.dropped
        return Sampled(columns, num_batches, dropped=dropped)

    def update_priorities(self, row_ids: Array, priorities: Array) -> None:
        """Raises ValueError: a row that was served does not come again."""
        raise ValueError("replay=fifo-once has no priorities")

    def stats(self) -> Mapping[str, float]:
        """Rows that wait, rows dropped so far, and how many versions old the rows were that were served last."""
        return {
            "size": len(self),
            "dropped_rows": self.dropped,
            "staleness_mean": float(self.staleness.mean()),
            "staleness_max": float(self.staleness.max()),
        }

    def contents(self) -> Columns:
        """A copy of the rows that wait, oldest first."""
        columns = self.store.take(self._slots(self.waiting))
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
        """None is taken: on-policy learning goes on with fresh ones."""

    @property
    def inserts(self) -> int:
        """Rows inserted so far."""
        return self.store.inserts

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return self.store.nbytes

    def _keep(self, is_kept: Array) -> None:
        self.dropped += len(self.waiting) - int(is_kept.sum())
        self.waiting = self.waiting[is_kept]

    def _slots(self, numbers: Array) -> Array:
        return numbers % self.store.capacity
