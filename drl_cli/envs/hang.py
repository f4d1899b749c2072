"""A limit on how long an environment may take for one call."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TICKS = 8
"""How often in `timeout_s` a look is taken: a hang is found by an eighth of it too late at most."""


class Hung(BaseException):
    """An environment took too long. Not an Exception, so that what an environment catches of its own is not this."""


@contextmanager
def hang_limit(timeout_s: float, calls: Callable[[], int]) -> Iterator[None]:
    """Raise Hung in a call that takes longer than `timeout_s`; `calls` is odd while one goes on, and never comes again.

    It is raised where Python code runs or sleeps: one that never returns from a library is not stopped. In another
    thread than the main one, where no signal arrives, there is no limit. SIGALRM is restored with its timer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen, unchanged = -1, 0

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal seen, unchanged
        unchanged = unchanged + 1 if calls() == seen else 0
        seen = calls()
        if unchanged >= TICKS and seen % 2:
            unchanged = 0
            raise Hung(f"hung for more than {timeout_s:g} s (worker.step_timeout_s)")

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, look)
    signal.siginterrupt(signal.SIGALRM, False)
    left, interval = signal.setitimer(signal.ITIMER_REAL, timeout_s / TICKS, timeout_s / TICKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - started)), interval)
