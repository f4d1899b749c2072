"""Clocks: the start of this process, monotonic time, a stopwatch for idle time, and the wait for a compiler."""

import datetime
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


def process_start() -> float:
    """Return the Unix time [s] at which this process started."""
    stat = Path("/proc/self/stat")  # exact to 0.01 s, unlike psutil, which rounds to seconds
    if not stat.exists():
        return float(psutil.Process().create_time())
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


STAMP, STAMP_LENGTH = "%Y%m%d-%H%M%S-%f", len("20260101-120000-000000")


def stamp_after(names: Iterable[str], now: datetime.datetime | None = None) -> str:
    """Return the local time as text, for the name of a new folder. It is later than all times with which `names` begin.

    The clock may have been set back, and local time repeats an hour in autumn. Then the text is up to 1 ms after the
    newest one. The microseconds of the clock tell two processes that start at the same time apart.
    """
    now = now or datetime.datetime.now()
    newest = next(filter(None, map(_time, sorted(names, reverse=True))), None)
    if newest is not None and newest >= now:
        now = newest + datetime.timedelta(microseconds=1 + now.microsecond % 1000)
    return now.strftime(STAMP)


def _time(name: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(name[:STAMP_LENGTH], STAMP)
    except ValueError:
        return None


class Waiting:
    """Measures the total time [s] during which something is idle, until `end`."""

    def __init__(self) -> None:
        self.total = 0.0
        self._since: float | None = None
        self._has_ended = False

    def start(self, now: float) -> None:
        if self._since is None and not self._has_ended:
            self._since = now

    def stop(self, now: float) -> None:
        if self._since is not None:
            self.total += now - self._since
            self._since = None

    def end(self, now: float) -> None:
        """Stop, and ignore every later start: a call that ends after the run must not count as idle time."""
        self.stop(now)
        self._has_ended = True

    def seconds(self, now: float) -> float:
        return self.total + (now - self._since if self._since is not None else 0.0)


now = time.monotonic
"""Return the time [s] of a clock that never goes backwards."""


_compiler_since: list[float] = []  # [s since the epoch]; empty or one number


@contextmanager
def waiting_for_compiler() -> Iterator[None]:
    """Note that this process waits for a compiler inside the `with` statement."""
    _compiler_since[:] = [time.time()]
    try:
        yield
    finally:
        _compiler_since.clear()


def compiler_since() -> float | None:
    """Return since when this process waits for a compiler [s since the epoch], or None. Any thread may call this."""
    return next(iter(_compiler_since), None)
