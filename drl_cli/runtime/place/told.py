"""The steps that a worker in another process tells during a call. Its calls end too late to be asked.

A thread in the worker's process writes them to a file beside the worker's log. The calls of a role must run in the main
thread, so a second method of the same actor is no alternative: the limit on hanging environments needs signals.
"""

import json
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from drl_cli.utils.files import replace_file

TELL_S = 1.0
"""Seconds between two writes."""


def told_file(log_file: str) -> Path:
    """Return the file beside a role's log file."""
    return Path(log_file).with_suffix(".steps")


def tell(role: Any, path: Path) -> None:  # Any: a role, which may have `told_steps`
    """Start a thread that writes the result of `role.told_steps()` to the file whenever it has changed."""
    if hasattr(role, "told_steps"):
        threading.Thread(target=_follow, args=(weakref.ref(role), path), name="told steps", daemon=True).start()


def read(path: Path) -> list[Any]:
    """Return what the role has told, [] if nothing can be read, for example on another node of a cluster."""
    try:
        told: list[Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return told


def _follow(reference: Any, path: Path) -> None:  # Any: a weak reference to a role; the thread ends with the role
    last, pause = None, threading.Event()
    while not pause.wait(TELL_S) and (role := reference()) is not None:
        told = role.told_steps()
        del role  # else the thread would keep the role alive during the pause
        if told != last:
            last = told
            with suppress(OSError):
                replace_file(path, json.dumps(told).encode(), syncs=False)
