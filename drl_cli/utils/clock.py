"""Time since the process started, which is where a user's clock starts too."""

import os
import time
from pathlib import Path

import psutil


def process_start() -> float:
    """Unix time [s] at which this process started.

    psutil counts from a boot time in whole seconds; Linux says it to a hundredth.
    """
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return float(psutil.Process().create_time())
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


class Waiting:
    """Adds up the time [s] during which something is idle."""

    def __init__(self) -> None:
        self.total = 0.0
        self._since: float | None = None

    def start(self, now: float) -> None:
        """Idle from now on; no effect when it already is."""
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        """Busy from now on; no effect when it already is."""
        if self._since is not None:
            self.total += now - self._since
            self._since = None

    def seconds(self, now: float) -> float:
        """Idle time so far, the present spell included."""
        return self.total + (now - self._since if self._since is not None else 0.0)


def now() -> float:
    """Monotonic time [s]."""
    return time.monotonic()
