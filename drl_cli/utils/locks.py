"""Locks on files. The operating system releases a lock when its process ends, even if the process is killed."""

import fcntl
import time
from pathlib import Path
from typing import TextIO

POLL_S = 0.05  # pause between attempts, because flock() has no timeout


def lock(path: Path, shared: bool = False, timeout_s: float = 0.0) -> TextIO:
    """Lock a file until the returned file is closed. Raise BlockingIOError after `timeout_s` of waiting."""
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
    """Return whether a process has an exclusive lock on a file; False if the file does not exist."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
