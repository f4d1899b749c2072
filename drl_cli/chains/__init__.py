"""Records the tensor operations of whole updates, and repeats a record in place of the update's Python code."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drl_cli.chains.log import Log
    from drl_cli.chains.tape import Tape


class _Present(threading.local):
    """The recorders of the updates that this thread is making. Updates can be nested; the last recorder is active."""

    def __init__(self) -> None:
        self.recorders: list[Tape | Log] = []


_present = _Present()


def recording() -> Tape | Log | None:
    """Return the recorder (a Tape or a Log) of the update that is running, or None if no update is recorded."""
    return _present.recorders[-1] if _present.recorders else None


def untaped() -> AbstractContextManager[None]:
    """Return a context manager that hides tensor operations from the recorder. Their results count as inputs."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
