"""What a role in another process tells during a call: its steps, and whether it waits for a compiler.

A thread in the role's process writes it to a file beside the role's log, because the role answers no other call during
a call. The calls of a role must run in the main thread, so a second method of the same actor is no alternative: the
limit on hanging environments needs signals.
"""

import json
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from drl_cli.utils.clock import compiler_since
from drl_cli.utils.files import replace_file

TELL_S = 1.0
"""Seconds between two writes."""


class News(NamedTuple):
    """`steps` are the result of the role's method `told_steps`, if it has one. `compiler_since`: see clock.py."""

    steps: tuple[Any, ...] = ()
    compiler_since: float | None = None


def told_by(role: Any) -> News:  # Any: a role, which may have `told_steps`
    """Return what a role in this process tells."""
    return News(tuple(role.told_steps()) if hasattr(role, "told_steps") else (), compiler_since())


def told_file(log_file: str) -> Path:
    """Return the file beside a role's log file."""
    return Path(log_file).with_suffix(".told")


def tell(role: object, path: Path) -> None:
    """Start a thread that writes what the role tells to the file whenever it has changed."""
    if role is not None:
        threading.Thread(target=_follow, args=(weakref.ref(role), path), name="told", daemon=True).start()


def read(path: Path) -> News:
    """Return what the role has told, News() if nothing can be read, for example on another node of a cluster."""
    try:
        steps, since = json.loads(path.read_text())
        return News(tuple(steps), since)
    except (OSError, ValueError):
        return News()


def _follow(reference: Any, path: Path) -> None:  # Any: a weak reference to a role; the thread ends with the role
    last, pause = News(), threading.Event()
    while not pause.wait(TELL_S) and (role := reference()) is not None:
        told = told_by(role)
        del role  # else the thread would keep the role alive during the pause
        if told != last:
            last = told
            with suppress(OSError):
                replace_file(path, json.dumps(told).encode(), syncs=False)
