"""Processors."""

import os


def num_cores() -> int:
    """How many this process may use; all of them where the system does not say (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
