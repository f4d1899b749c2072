"""Locks on files: the system lifts them with the process that has them, however that ends."""

import fcntl
import time
from pathlib import Path
from typing import TextIO

POLL_S = 0.05  # the system can wait for a lock, or for a time, but not for both


def lock(path: Path, shared: bool = False, timeout_s: float = 0.0) -> TextIO:
    """Lock a file, alone or with others who share it, until what is returned is closed.

    Raises BlockingIOError when another process has it for all that time.
    """
    file, end = path.open("w"), time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                file.close()
                raise
            time.sleep(POLL_S)
        else:
            return file


def is_locked(path: Path) -> bool:
    """Whether a process has a file locked for itself alone; no file is not locked."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
