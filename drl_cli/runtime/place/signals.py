"""SIGINT and SIGTERM: the first ends a run softly, the second at once; SIGUSR1 pauses it and lets it go on."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}


class Interrupted(BaseException):
    """A signal came while there was nothing to save, or a second one."""


class Signals:
    """`soft`, once it is set, ends the run with its checkpoint saved; what comes while it is cleaned up is ignored."""

    def __init__(self) -> None:
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
        """Of the first signal, 0 without any."""
        return EXIT_CODES[signal.Signals(self.received[0])] if self.received else 0

    def on_end(self, number: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM."""
        if self.is_closing:
            return
        self.received.append(number)
        if self.soft is None or len(self.received) > 1:
            self.has_raised = True
            raise Interrupted
        self.soft()

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
