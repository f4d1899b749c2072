"""When: the time at which whole updates are compiled. This file does not import torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

PATIENCE_S = 20.0
"""The seconds of training before a compilation may start, which are about as long as a compilation."""
REST_S = 60.0
"""The seconds that the rest of a run has to take at least. In a shorter rest, a compilation saves no time."""
Note = tuple[int, str]
"""(level of `logging`, message for the user)"""


class Resettable(Protocol):
    """An object such as a Chain. `reset` makes it forget its compiled programs."""

    def reset(self) -> None: ...


@dataclass
class When:
    """The time at which updates are compiled: `before` the first update, or `beside` the updates.

    No compilation starts before `may_start()` returns True. `chains` has the chains that use this object, and `notes`
    has their messages for the user.
    """

    time: Literal["before", "beside"]
    may_start: Callable[[], bool] = lambda: True
    chains: list[Resettable] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.notes.append((logging.WARNING, text))

    def tell(self, text: str) -> None:
        self.notes.append((logging.INFO, text))

    def take_notes(self) -> tuple[Note, ...]:
        """Return the messages since the last call."""
        notes = tuple(self.notes)
        self.notes = []
        return notes

    def reset(self) -> None:
        """Tell all chains that tensors were replaced."""
        for chain in self.chains:
            chain.reset()


class PaysOff:
    """Decides whether to compile updates during training. Short runs do not compile.

    A call returns True after PATIENCE_S seconds, if the rest of the run will take at least REST_S seconds. Call the
    object once before each of the `planned` updates.
    """

    def __init__(self, planned: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.planned, self._clock = planned, clock
        self._updates = 0
        self._started = 0.0
        self._may = False

    def __call__(self) -> bool:
        if self._may:
            return True
        if self._updates == 0:
            self._started = self._clock()
        self._updates += 1
        passed = self._clock() - self._started
        left = self.planned - self._updates
        self._may = passed >= PATIENCE_S and left * passed / self._updates >= REST_S
        return self._may
