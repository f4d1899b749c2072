"""Whole updates as compiled graphs: record an update as it runs, compile the record, run the compiled program."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drl_cli.chains.tape import Tape

_present: list[Tape] = []


def recording() -> Tape | None:
    """Return the tape that records the present update, or None."""
    return _present[-1] if _present else None


def untaped() -> AbstractContextManager[None]:
    """Return a context in which the tape does not see operations: their results are inputs of the update."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
