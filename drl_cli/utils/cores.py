"""The CPU cores of this process."""

import os


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use, or of all cores if this is unknown (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(cores())
