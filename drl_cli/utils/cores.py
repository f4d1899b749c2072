"""The CPU cores of this process."""

import os


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use; all cores if the system does not tell (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(cores())
