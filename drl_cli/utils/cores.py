"""Processors."""

import os


def cores() -> list[int]:
    """Those that this process may use, by number; all of them where the system does not say (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """How many this process may use."""
    return len(cores())
