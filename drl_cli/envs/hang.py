"""Limit the duration of a single call of an environment."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

TICKS = 8
"""Number of checks per `timeout_s`. A hang is detected at most one eighth of `timeout_s` too late."""


Tick: TypeAlias = Callable[[str], None]
"""A function that is told the name of each call of an environment, before the call."""


def no_tick(name: str) -> None:
    """Do nothing. The default of `tick`."""


class Hung(BaseException):
    """Raised if an environment takes too long. It derives from BaseException, so that environments do not catch it."""


class CallWatch:
    """Context manager around each call of an environment; `hang_limit` reads `number` to see how long the call takes.

    `number` is odd during a call and never repeats. A counter is used because it costs the least time: a step
    of a small environment takes only 5 us.
    """

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.number += 1


@contextmanager
def hang_limit(timeout_s: float, calls: CallWatch) -> Iterator[None]:
    """Raise Hung inside a call that takes longer than `timeout_s`.

    Python code and sleeping can be interrupted, but not a library call that never returns. Outside the main thread
    there is no limit, because Python handles signals only in the main thread. At the end, the previous SIGALRM handler
    and timer are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen, ticks, ending = -1, 0, CallWatch.__exit__.__code__

    def check(number: int, frame: FrameType | None) -> None:
        nonlocal seen, ticks
        ticks = ticks + 1 if calls.number == seen else 0
        seen = calls.number
        is_ending = frame is not None and frame.f_code is ending  # raising here would leave `number` odd
        if ticks >= TICKS and seen % 2 and not is_ending:
            ticks = 0
            raise Hung(f"hung for more than {timeout_s:g} s (worker.step_timeout_s)")

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, check)
    signal.siginterrupt(signal.SIGALRM, False)
    left, interval = signal.setitimer(signal.ITIMER_REAL, timeout_s / TICKS, timeout_s / TICKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - started)), interval)
