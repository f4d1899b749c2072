"""Whole updates as lists of operations and as compiled graphs: record an update as it runs, then run the record."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drl_cli.chains.log import Log
    from drl_cli.chains.tape import Tape


class _Present(threading.local):
    """The tapes and logs that record the present updates of this thread."""

    def __init__(self) -> None:
        self.recorders: list[Tape | Log] = []


_present = _Present()


def recording() -> Tape | Log | None:
    """Return the tape or the log that records the present update, or None."""
    return _present.recorders[-1] if _present.recorders else None


def untaped() -> AbstractContextManager[None]:
    """Return a context in which the tape does not see operations: their results are inputs of the update."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
