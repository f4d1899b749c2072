"""The recorder of the update that is running, for code that an update calls and that records itself in another way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from drl_cli.utils.lazy import Tensor


class Recording(Protocol):
    """What a recorder (a Tape or a Log) offers to the code of an update."""

    wants_plain: bool

    def scalar(self, compute: Callable[[Any], float]) -> Tensor: ...  # Any: a NamedTuple of integers

    def effect(self, function: Callable[[Tensor], None], tensor: Tensor) -> None: ...

    def require(self, condition: Tensor) -> None: ...

    def fail(self, reason: str) -> None: ...


class _Present(threading.local):
    """The recorders of the updates that this thread is making. Updates can be nested; the last recorder is active."""

    def __init__(self) -> None:
        self.recorders: list[Recording] = []


present = _Present()


def recording() -> Recording | None:
    """Return the recorder of the update that is running, or None if no update is recorded."""
    return present.recorders[-1] if present.recorders else None


def untaped() -> AbstractContextManager[None]:
    """Return a context manager that hides tensor operations from the recorder. Their results count as inputs."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
