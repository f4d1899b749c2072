"""Clocks: the start of this process, monotonic time, and a stopwatch for idle time."""

import os
import time
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


class Waiting:
    """Measures the total time [s] during which something is idle."""

    def __init__(self) -> None:
        self.total = 0.0
        self._since: float | None = None

    def start(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        if self._since is not None:
            self.total += now - self._since
            self._since = None

    def seconds(self, now: float) -> float:
        return self.total + (max(0.0, now - self._since) if self._since is not None else 0.0)


def now() -> float:
    """Return the time [s] of a clock that never goes backwards."""
    return time.monotonic()
