"""SIGINT and SIGTERM: the first ends a run softly, the second at once; SIGUSR1 pauses it and lets it go on."""

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
    """A signal came while there was nothing to save, or a second one."""


PATIENCE_S = 10.0
"""For an update that goes on when the first signal comes; then it counts as a second one."""


class Signals:
    """`soft`, once it is set, ends the run with its checkpoint saved; what comes while it is cleaned up is ignored.

    `is_updating` tells whether the trainers have not answered yet.
    """

    def __init__(self) -> None:
        self.is_updating: Callable[[], bool] = lambda: False
        self.soft: Callable[[], None] | None = None
        self.toggle: Callable[[], None] | None = None
        self.received: list[int] = []
        self.has_raised = False
        self.is_closing = False

    def install(self) -> None:
        """From now on; again when another has put its own handlers in front, as Ray does, which prints its stack."""
        signal.signal(signal.SIGINT, self.on_end)
        signal.signal(signal.SIGTERM, self.on_end)
        signal.signal(signal.SIGUSR1, self.on_pause)

    @property
    def exit_code(self) -> int:
        """Of the first signal, DONE without any."""
        return SIGNAL_CODES[signal.Signals(self.received[0])] if self.received else DONE

    def on_end(self, number: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM."""
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
        """The signal once more, where an update still goes on; from a thread, since that may keep the main one."""
        if self.is_updating() and not self.is_closing:
            log.warning("ended within an update that takes more than %g s; the last checkpoint is kept", PATIENCE_S)
            os.kill(os.getpid(), number)

    def on_pause(self, number: int, frame: FrameType | None) -> None:
        """SIGUSR1."""
        if self.toggle is not None:
            self.toggle()


@contextmanager
def catch() -> Iterator[Signals]:
    """React to signals inside the block as Signals does, then as before; after the first, ignore them at the end."""
    signals = Signals()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    signals.install()
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if signals.received else handler)
