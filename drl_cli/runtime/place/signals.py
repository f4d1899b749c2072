"""Signals that end a run with a checkpoint: SIGINT, SIGTERM, and SIGHUP, which a closed terminal sends.

A second SIGINT or SIGTERM ends the run at once. SIGUSR1 pauses the run. Ray must not replace these handlers: handles.py
tells Ray so, and Ray starts in another thread, because in the main thread it would install a handler of SIGTERM.
"""

import logging
import math
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from drl_cli.errors import DONE, HUNG_UP, INTERRUPTED, TERMINATED
from drl_cli.utils.clock import now

log = logging.getLogger(__name__)

SIGNAL_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}


class Interrupted(BaseException):
    """A signal came before the run could save a checkpoint, or a second signal came."""


PATIENCE_S = 10.0
"""Maximum time [s] for an update after the first signal. After this time, a second signal is sent."""
TOGETHER_S = 2.0
"""Signals within this time [s] count as one: a scheduler may send one to the process and one to its group.

Python handles a signal only between two operations, so that on a busy machine, signals seem to come later.
"""


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a run. Under `nohup`, SIGHUP is ignored, and stays ignored."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in SIGNAL_CODES if not (number == signal.SIGHUP and is_ignored)]


def leave_terminal() -> None:
    """Let the standard streams of a closed terminal read and write nothing, because every write would fail."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with suppress(OSError):
            status = os.fstat(stream)
            is_device = stat.S_ISCHR(status.st_mode) and status.st_rdev != os.fstat(null).st_rdev
            if is_device and not os.isatty(stream):  # a closed terminal does not answer as a terminal
                os.dup2(null, stream)
    os.close(null)


class Signals:
    """Calls `soft` at the first signal that ends a run and `toggle` at SIGUSR1, if these functions are set.

    `soft` ends the run with a checkpoint, and `toggle` pauses or continues the run. A first signal without `soft`, and
    a second signal, raise Interrupted while `raises` is True; otherwise they are only noted. `is_updating` returns
    whether a train call is in flight.
    """

    def __init__(self) -> None:
        self.is_updating: Callable[[], bool] = lambda: False
        self.soft: Callable[[], None] | None = None
        self.toggle: Callable[[], None] | None = None
        self.received: list[int] = []
        self.counted_at = -math.inf
        self.raises = False
        self.has_raised = False

    def install(self) -> None:
        for number in ending_signals():
            signal.signal(number, self.on_end)
        signal.signal(signal.SIGUSR1, self.on_pause)

    @property
    def exit_code(self) -> int:
        """The exit code for the first signal, or DONE if no signal came."""
        return SIGNAL_CODES[signal.Signals(self.received[0])] if self.received else DONE

    def begin_raising(self) -> None:
        """Set `raises`. Raise Interrupted now if a signal came before and `soft` is not set."""
        self.raises = True
        if self.received and self.soft is None:
            self._raise()

    def on_end(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        is_repeated = self.received and (number == signal.SIGHUP or now() - self.counted_at < TOGETHER_S)
        if is_repeated:  # for SIGHUP, the shell and the kernel send one each
            return
        self.received.append(number)
        self.counted_at = now()
        if self.soft is None or len(self.received) > 1:
            if self.raises:
                self._raise()
            return
        self.soft()
        timer = threading.Timer(PATIENCE_S, self._insist)
        timer.daemon = True
        timer.start()

    def _raise(self) -> NoReturn:
        """Raise Interrupted. Python may drop an exception, such as in `__del__`; then the next signal raises again."""
        self.has_raised = True
        raise Interrupted

    def _insist(self) -> None:
        """Send a second signal if an update is still running. A timer calls this in a separate thread."""
        if self.raises and self.is_updating():
            log.warning("an update takes more than %g s: ended without it; the last checkpoint is kept", PATIENCE_S)
            os.kill(os.getpid(), signal.SIGTERM)

    def on_pause(self, number: int, frame: FrameType | None) -> None:
        if self.toggle is not None:
            self.toggle()


@contextmanager
def catch() -> Iterator[Signals]:
    """Handle signals in the `with` block. Afterwards, restore the handlers or, if a signal came, ignore signals."""
    signals = Signals()
    before = {number: signal.getsignal(number) for number in (*ending_signals(), signal.SIGUSR1)}
    signals.install()
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if signals.received else handler)


@contextmanager
def ending_with(signals: Signals) -> Iterator[None]:
    """Turn Interrupted into the exception with which Python programs end after the first signal."""
    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt if signals.exit_code == INTERRUPTED else SystemExit(signals.exit_code) from None


def ignore_signals() -> None:
    """Ignore the signals that end a run from now on, because the command is over and only its exit code is left."""
    for number in SIGNAL_CODES:
        signal.signal(number, signal.SIG_IGN)
