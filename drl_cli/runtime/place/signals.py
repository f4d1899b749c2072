"""Signals: the first SIGINT or SIGTERM ends a run with a checkpoint, the second at once; SIGUSR1 pauses it."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from drl_cli.errors import DONE, INTERRUPTED, TERMINATED

log = logging.getLogger(__name__)

SIGNAL_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class Interrupted(BaseException):
    """A signal came before the run could save a checkpoint, or a second signal came."""


PATIENCE_S = 10.0
"""The time that an update may take after the first signal; after it the run ends as if a second signal had come."""


class Signals:
    """Calls `soft` at the first SIGINT or SIGTERM, and `toggle` at SIGUSR1, once they are set.

    `soft` ends the run with a checkpoint. `is_updating` tells whether a train call is in flight. While `is_closing`,
    signals are ignored.
    """

    def __init__(self) -> None:
        self.is_updating: Callable[[], bool] = lambda: False
        self.soft: Callable[[], None] | None = None
        self.toggle: Callable[[], None] | None = None
        self.received: list[int] = []
        self.has_raised = False
        self.is_closing = False

    def install(self) -> None:
        """Install the handlers, again after Ray has installed its own, which print a stack."""
        signal.signal(signal.SIGINT, self.on_end)
        signal.signal(signal.SIGTERM, self.on_end)
        signal.signal(signal.SIGUSR1, self.on_pause)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the first signal, DONE without a signal."""
        return SIGNAL_CODES[signal.Signals(self.received[0])] if self.received else DONE

    def on_end(self, number: int, frame: FrameType | None) -> None:
        if self.is_closing:
            return
        self.received.append(number)
        if self.soft is None or len(self.received) > 1:
            self.has_raised = True
            raise Interrupted
        self.soft()
        timer = threading.Timer(PATIENCE_S, self._insist, (number,))
        timer.daemon = True
        timer.start()

    def _insist(self, number: int) -> None:
        """Send the signal again if an update still runs; called in a thread, as the update may block the main one."""
        if self.is_updating() and not self.is_closing:
            log.warning("an update takes more than %g s: ended without it; the last checkpoint is kept", PATIENCE_S)
            os.kill(os.getpid(), number)

    def on_pause(self, number: int, frame: FrameType | None) -> None:
        if self.toggle is not None:
            self.toggle()


@contextmanager
def catch() -> Iterator[Signals]:
    """Handle signals inside the block; restore the handlers after it, or ignore signals if one has come."""
    signals = Signals()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    signals.install()
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if signals.received else handler)
