"""Measure rates in interleaved rounds, and format them as lines of a table."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

K = TypeVar("K")

ROUNDS = 5
"""Rounds of each measurement. The table shows the median and the range of the rounds."""


@dataclass(frozen=True)
class Rate:
    """Items processed per second of wall-clock time, and per second of this process's CPU time."""

    per_s: float
    per_cpu_s: float


@dataclass(frozen=True)
class Figure:
    """A line of the table. `note` often compares the value with another value."""

    part: str
    what: str
    unit: str
    value: float
    rounds: tuple[float, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, part: str, what: str, unit: str, rates: Sequence[Rate], note: str = "") -> "Figure":
        rounds = tuple(rate.per_s for rate in rates)
        return cls(part, what, unit, median(rounds), rounds, note)

    def __str__(self) -> str:
        spread = f"{short(min(self.rounds))} - {short(max(self.rounds))}" if self.rounds else ""
        return row(self.part, self.what, f"{short(self.value)} {self.unit}", spread, self.note)


def timed(work: Callable[[], int], seconds: float = 0.0) -> Rate:
    """Call `work` for `seconds`, at least once, and return the rate. `work` returns the number of processed items."""
    done, started, used = 0, time.perf_counter(), time.process_time()
    while True:
        done += work()
        took = time.perf_counter() - started
        if took >= seconds:
            return Rate(done / took, done / max(1e-9, time.process_time() - used))


def in_turn(plays: Mapping[K, Callable[[], Rate]]) -> dict[K, list[Rate]]:
    """Call every function once per round. Every second round has the reverse order, so that order is no advantage."""
    results: dict[K, list[Rate]] = {name: [] for name in plays}
    for i in range(ROUNDS):
        for name in list(plays)[:: -1 if i % 2 else 1]:
            results[name].append(plays[name]())
    return results


def middle(rates: Sequence[Rate]) -> Rate:
    """Return the median of the rates per second, and of the rates per CPU second."""
    return Rate(median(rate.per_s for rate in rates), median(rate.per_cpu_s for rate in rates))


def short(value: float) -> str:
    """Format a number with three significant digits, or without decimals from 1000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def row(part: str, what: str, value: str, spread: str, note: str) -> str:
    """Return a line of the table of figures, or the table's head."""
    return f"{part:<8} {what:<46} {value:>20}   {spread:<21} {note}".rstrip()
