"""Rate limiters: decide from counts whether workers and trainers may make another call. A limiter never blocks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

ROUNDING = 1e-6  # tolerance, because a ratio such as 0.1 has no exact binary form


class Counts(ABC):
    """What all limiters do with their counts. `samples` counts batches, those of calls in flight, too."""

    saved: ClassVar[tuple[str, ...]] = ("landed", "samples")
    """The counts in a checkpoint. They do not include collect calls in flight, and no train call may be in flight."""
    samples: int

    @abstractmethod
    def owed(self, rows: int = 0) -> int:
        """Return how many batches will be due but not drawn after `rows` more transitions. 0 in the warm-up."""

    def may_sample(self, batches: int) -> bool:
        return self.owed() >= batches

    def issue_sample(self, batches: int) -> None:
        self.samples += batches

    def served(self, asked: int, batches: int, waiting: int, repeats: int) -> None:
        """Correct the count after replay returned `batches` of `asked` batches. Only QueueLimiter uses the rest."""
        self.samples -= asked - batches

    def state(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.saved}

    def load_state(self, state: Mapping[str, int]) -> None:
        for name in self.saved:
            setattr(self, name, state[name])


@dataclass
class RateLimiter(Counts):
    """Keeps the number of batches per transition near `ratio`, by stopping workers or trainers that are ahead.

    `inserts` counts transitions and `samples` counts batches. Both include calls in flight. `landed` counts the
    transitions sent to replay. A collect call adds K transitions, and a train call takes U batches. With r = ratio:

        target = r * max(0, inserts - min_inserts)
        may_sample(U):  landed >= min_inserts  and  target - samples - U >= -band / 2
        may_collect(K): inserts < min_inserts  or   target + r K - samples <= band / 2

    If band >= r K + U, one of the two conditions holds when no call is in flight, so there is no deadlock.
    min_inserts=0 is treated as 1, because an empty table can't be sampled. Comparisons allow for rounding errors.
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
        """The number of batches that are due for the transitions so far."""
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
        """Count the end of a collect call that asked for `issued` transitions and returned `rows`."""
        self.inserts += rows - issued
        self.landed += rows

    def load_state(self, state: Mapping[str, int]) -> None:
        super().load_state(state)
        self.inserts = self.landed


@dataclass
class QueueLimiter(Counts):
    """Limits an on-policy queue, which serves each transition `times` times.

    A batch has `batch_size` transitions and may be drawn once it is complete, `times` times in succession. `queued`
    counts the transitions that were not drawn yet, and the last batch may be drawn `repeats` more times. Workers may
    collect until one batch is queued or in flight, and after that up to `ahead` batches in total. When no call is in
    flight, a collect call or a train call is allowed. At most one train call is in flight.
    """

    batch_size: int
    ahead: int
    free: bool = False
    in_flight: int = 0
    queued: int = 0
    times: int = 1
    repeats: int = 0
    landed: int = 0  # transitions that were queued after the last draw

    saved = ("queued", "repeats")

    def may_collect(self, rows: int) -> bool:
        waiting = self.queued + self.in_flight
        return self.free or waiting < self.batch_size or waiting + rows <= self.ahead * self.batch_size

    def owed(self, rows: int = 0) -> int:
        # Ignore negative `rows`, which correct for calls in flight: `queued` does not include these calls.
        return self.repeats + self.times * (max(0, self.queued + max(0, rows)) // self.batch_size)

    def issue_collect(self, rows: int) -> None:
        self.in_flight += rows

    def land(self, issued: int, rows: int) -> None:
        self.in_flight -= issued
        self.queued += rows
        self.landed += rows

    def issue_sample(self, batches: int) -> None:
        new = max(0, -((self.repeats - batches) // self.times))  # batches that are drawn for the first time
        self.repeats += new * self.times - batches
        self.queued -= new * self.batch_size
        self.landed = 0

    def served(self, asked: int, batches: int, waiting: int, repeats: int) -> None:
        """Set the counts to what the queue reported after the draw, because it may have dropped rows as too old."""
        self.queued, self.repeats = waiting + self.landed, repeats


REUSE = 8
"""A row of a dataset that does not fit into the table is drawn about this number of times before the next row of the
dataset overwrites it."""


@dataclass
class ReadLimiter(Counts):
    """Paces a run without workers: `fill` transitions are read, then `total` updates are made.

    If the table can't hold the whole dataset, `rows_per_update` more transitions are read for each update. Otherwise
    `rows_per_update` is 0. `missing` transitions are still to be read before the next update.
    """

    total: int
    fill: int
    rows_per_update: float = 0.0
    landed: int = 0
    samples: int = 0
    missing: int = 0
    free: bool = False

    saved = ("landed", "samples", "missing")

    def __post_init__(self) -> None:
        self.missing = self.fill

    def lose(self) -> None:
        """Have the table filled again: a checkpoint did not contain its rows."""
        self.landed, self.missing = self.landed - self.fill, self.fill

    def may_collect(self, rows: int) -> bool:
        return self.samples < self.total and self.owed() == 0

    def owed(self, rows: int = 0) -> int:
        """Return how many updates are due. 0 means that the reader has to read."""
        if self.missing > rows:
            return 0
        ahead, left = self.landed + rows - self.fill, self.total - self.samples
        if not self.rows_per_update:
            return left
        return max(0, min(left, int((ahead + 1) / self.rows_per_update + ROUNDING) - self.samples))

    def issue_collect(self, rows: int) -> None:
        """Do nothing: the reader decides how many transitions it reads."""

    def land(self, issued: int, rows: int) -> None:
        self.landed += rows
        self.missing = max(0, self.missing - rows)


Limiter: TypeAlias = RateLimiter | QueueLimiter | ReadLimiter


def required_band(ratio: float, rows: int, batches: int) -> float:
    """Return the smallest band with which workers and trainers never block each other: r K + U."""
    return ratio * rows + batches
