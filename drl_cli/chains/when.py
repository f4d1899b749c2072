"""When: the time at which whole updates are compiled. This file does not import torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

PATIENCE_S = 20.0
"""Seconds of training before a compilation may start: about as long as a compilation takes."""
REST_S = 60.0
Note = tuple[int, str]
"""A level of `logging`, and a message for the user."""


class Resettable(Protocol):
    """A chain, which forgets its programs in `reset`."""

    def reset(self) -> None: ...


@dataclass
class When:
    """`before` the first update, or `beside` the updates, from the moment at which `may_start()` is True.

    `chains` are the chains made with this object, and `notes` are their messages for the user.
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
        notes, self.notes = tuple(self.notes), []
        return notes

    def reset(self) -> None:
        """Tell all chains that tensors were replaced."""
        for chain in self.chains:
            chain.reset()


class PaysOff:
    """Whether to compile beside training: after PATIENCE_S seconds, if the rest of the run takes at least REST_S.

    Therefore short runs do not compile. The object is called once before each of `planned` updates.
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
