"""Rate limiters: arithmetic that says whether workers or trainers may go on. They never wait."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

ROUNDING = 1e-6  # a ratio such as 0.1 has no exact binary form


class Limiter(Protocol):
    """Told of every call, it answers whether the next one may be made."""

    free: bool

    def may_sample(self, batches: int) -> bool:
        """Whether U more batches may be drawn now."""

    def may_collect(self, rows: int) -> bool:
        """Whether K more transitions may be collected now."""

    def owed(self, rows: int = 0) -> int:
        """Whole batches that are paid for, or will be by K more rows, and not drawn yet; 0 before the first may be.

        A negative K takes back rows that are counted while under way, and may not come.
        """

    def issue_collect(self, rows: int) -> None:
        """A collect call of K rows is on its way."""

    def land(self, issued: int, rows: int) -> None:
        """A collect call came back: `issued` rows were counted for it, `rows` are in replay now (0: it was lost)."""

    def issue_sample(self, batches: int) -> None:
        """A train call of U batches is on its way."""

    def unserved(self, batches: int, dropped: int) -> None:
        """A train call was served so many batches less than it asked for, and `dropped` transitions were too old."""

    def state(self) -> dict[str, int]:
        """What has landed and been served. Collects under way are left out; no train call may be under way."""

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on from `state()`."""


@dataclass
class RateLimiter:
    """Two-sided: holds batches per transition at the configured ratio.

    `inserts` counts transitions, `samples` batches, both with calls in flight counted as done; `landed` counts the
    transitions that are in replay. With r = ratio, a collect adds K transitions, a train call takes U batches:

        target = r * max(0, inserts - min_inserts)
        may_sample(U):  landed >= min_inserts  and  target - samples - U >= -band / 2
        may_collect(K): inserts < min_inserts  or   target + r K - samples <= band / 2

    One of them is always true when band >= r K + U: otherwise both sides would wait for each other for ever.
    (min_inserts counts as 1 when it is 0, since an empty table can't be sampled; comparisons allow for rounding.)
    """

    ratio: float
    min_inserts: int
    band: float
    free: bool = False
    inserts: int = 0
    landed: int = 0
    samples: int = 0

    @property
    def target(self) -> float:
        """Batches that the transitions so far pay for."""
        return self.ratio * max(0, self.inserts - self.min_inserts)

    def may_sample(self, batches: int) -> bool:
        if self.landed < max(1, self.min_inserts):
            return False
        return self.free or self.target - self.samples - batches >= -self.band / 2 - ROUNDING

    def may_collect(self, rows: int) -> bool:
        if self.free or self.inserts < max(1, self.min_inserts):
            return True
        return self.target + self.ratio * rows - self.samples <= self.band / 2 + ROUNDING

    def owed(self, rows: int = 0) -> int:
        if self.landed < max(1, self.min_inserts):
            return 0
        return max(0, int(self.target + self.ratio * rows - self.samples + ROUNDING))

    def issue_collect(self, rows: int) -> None:
        self.inserts += rows

    def land(self, issued: int, rows: int) -> None:
        self.inserts += rows - issued
        self.landed += rows

    def issue_sample(self, batches: int) -> None:
        self.samples += batches

    def unserved(self, batches: int, dropped: int) -> None:
        self.samples -= batches

    def state(self) -> dict[str, int]:
        return {"landed": self.landed, "samples": self.samples}

    def load_state(self, state: Mapping[str, int]) -> None:
        self.inserts = self.landed = state["landed"]
        self.samples = state["samples"]


@dataclass
class QueueLimiter:
    """For a queue whose transitions are served once: `batch_size` of them make a batch, `ahead` batches may wait.

    A batch may be drawn when it is there; collecting goes on while less than a batch is there or under way, and as far
    as `ahead` batches beyond that. One of the two is always true.
    """

    batch_size: int
    ahead: int
    free: bool = False
    under_way: int = 0
    queued: int = 0

    def may_sample(self, batches: int) -> bool:
        return self.queued >= batches * self.batch_size

    def may_collect(self, rows: int) -> bool:
        waiting = self.queued + self.under_way
        return self.free or waiting < self.batch_size or waiting + rows <= self.ahead * self.batch_size

    def owed(self, rows: int = 0) -> int:
        return max(0, self.queued + max(0, rows)) // self.batch_size  # what is under way is not queued: none comes off

    def issue_collect(self, rows: int) -> None:
        self.under_way += rows

    def land(self, issued: int, rows: int) -> None:
        self.under_way -= issued
        self.queued += rows

    def issue_sample(self, batches: int) -> None:
        self.queued -= batches * self.batch_size

    def unserved(self, batches: int, dropped: int) -> None:
        self.queued += batches * self.batch_size - dropped

    def state(self) -> dict[str, int]:
        return {"queued": self.queued}

    def load_state(self, state: Mapping[str, int]) -> None:
        self.queued = state["queued"]


def required_band(ratio: float, rows: int, batches: int) -> float:
    """The smallest band that can't deadlock: r K + U."""
    return ratio * rows + batches
