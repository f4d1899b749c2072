"""Aside: a recorder that may be slow or fail, in a thread of its own."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drl_cli.metrics.recorders import Recorder

log = logging.getLogger(__name__)

MOST_WAITING = 1000  # calls; at one report every two seconds half an hour


class Aside:
    """Makes a recorder and calls it, in order, while nobody waits for it.

    The first thing that goes wrong is said once, by `take_problem`; the recorder is called again all the same, as a
    server may come back. Only where it can't be made, that is the end of it. What it is too slow for is left out.
    """

    def __init__(self, name: str, make: Callable[[], Recorder]) -> None:
        self.name, self.make = name, make
        self._calls: queue.Queue[tuple[Any, ...]] = queue.Queue(MOST_WAITING)
        self._problem: str | None = None
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"recorder {name}", daemon=True)
        self._thread.start()

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Have these scalars recorded."""
        self._put("record", dict(scalars), env_steps)

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        """Have this video recorded, where the recorder takes videos."""
        self._put("video", tag, path, env_steps)

    def close(self, status: str) -> None:
        """Have all recorded that waits, and nothing after it."""
        self._put("close", status)

    def wait(self, timeout_s: float) -> None:
        """Until a recorder that was closed has written all that it was given."""
        self._thread.join(max(0.0, timeout_s))
        if self._thread.is_alive():
            self._fail("is still busy at the end; what it has not written is missing")

    def take_problem(self) -> str | None:
        """What went wrong first, the first time that this is asked."""
        problem, self._problem = self._problem, None
        return problem

    def _put(self, *call: Any) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            if self._thread.is_alive():
                self._fail("is too slow; some of what there is to record is left out")

    def _run(self) -> None:
        try:
            recorder = self.make()
        except (Exception, SystemExit) as error:
            self._fail(f"can't be made: {_line(error)}", error)
            return
        method = ""
        while method != "close":
            method, *args = self._calls.get()
            try:
                if method != "video" or hasattr(recorder, "video"):
                    getattr(recorder, method)(*args)
            except (Exception, SystemExit) as error:
                self._fail(f"{method} raised {_line(error)}", error)

    def _fail(self, what: str, error: BaseException | None = None) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._problem = f"{self.name} {what} (said once; training goes on)"
            log.info("%s", self._problem, exc_info=error)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
