"""What is measured: rates, taken in rounds in which everything that is compared has its turn."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

K = TypeVar("K")

ROUNDS = 5
"""Of each measurement: their median counts, their spread is shown."""


@dataclass(frozen=True)
class Rate:
    """How many things are done in a second of the clock, and in one of this process's processor time."""

    per_s: float
    per_cpu_s: float

    def times(self, factor: float) -> "Rate":
        """The same work counted in another unit, of which each thing has so many."""
        return Rate(self.per_s * factor, self.per_cpu_s * factor)


@dataclass(frozen=True)
class Figure:
    """A line of the table; `note` says what the value is to be compared with."""

    part: str
    what: str
    unit: str
    value: float
    rounds: tuple[float, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, part: str, what: str, unit: str, rates: Sequence[Rate], note: str = "") -> "Figure":
        """The median of these rounds."""
        rounds = tuple(rate.per_s for rate in rates)
        return cls(part, what, unit, median(rounds), rounds, note)


def timed(work: Callable[[], int], seconds: float = 0.0) -> Rate:
    """Work for so long, at least once; each call says how many things it did."""
    done, started, used = 0, time.perf_counter(), time.process_time()
    while True:
        done += work()
        took = time.perf_counter() - started
        if took >= seconds:
            return Rate(done / took, done / max(1e-9, time.process_time() - used))


def in_turn(plays: Mapping[K, Callable[[], Rate]], rounds: int = ROUNDS) -> dict[K, list[Rate]]:
    """Rounds of each; the order is turned round after each, so that none always follows the same other one."""
    results: dict[K, list[Rate]] = {name: [] for name in plays}
    for i in range(rounds):
        for name in list(plays)[:: -1 if i % 2 else 1]:
            results[name].append(plays[name]())
    return results


def middle(rates: Sequence[Rate]) -> Rate:
    """The median of both."""
    return Rate(median(rate.per_s for rate in rates), median(rate.per_cpu_s for rate in rates))


def short(value: float) -> str:
    """A number with three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
