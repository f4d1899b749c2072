"""BackgroundRecorder: use a separate thread for a recorder that may be slow or fail."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drl_cli.metrics.recorders import Recorder

log = logging.getLogger(__name__)

MAX_WAITING = 1000
"""Maximum number of calls in the queue. One report every two seconds fills the queue in half an hour."""


class BackgroundRecorder:
    """Makes a recorder and forwards calls to it in order, without delaying the caller.

    `take_problem` returns the first problem once. A recorder that fails is called again at the next report, because a
    server may recover. If the queue is full, further calls are dropped.
    """

    def __init__(self, name: str, make: Callable[[], Recorder]) -> None:
        self.name, self.make = name, make
        self._calls: queue.Queue[tuple[Any, ...]] = queue.Queue(MAX_WAITING)
        self._problem: str | None = None
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"recorder {name}", daemon=True)
        self._thread.start()

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        self._put("record", dict(scalars), env_steps)

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        """Queue a video. The video is dropped if the recorder has no method `video`."""
        self._put("video", tag, path, env_steps)

    def close(self, status: str) -> None:
        """Queue the end of the recording. Later calls record nothing."""
        self._put("close", status)

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until a closed recorder has written everything."""
        self._thread.join(max(0.0, timeout_s))
        if self._thread.is_alive():
            self._fail("is still busy at the end; unwritten values are lost")

    def take_problem(self) -> str | None:
        """Return the first problem, or None if there is none or an earlier call returned it."""
        problem, self._problem = self._problem, None
        return problem

    def _put(self, *call: Any) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            if self._thread.is_alive():
                self._fail("is too slow; some values are left out")

    def _run(self) -> None:
        try:
            recorder = self.make()
        except (Exception, SystemExit) as error:
            self._fail(f"can't be made: {one_line(error)}", error)
            return
        method = ""
        while method != "close":
            method, *args = self._calls.get()
            try:
                if method != "video" or hasattr(recorder, "video"):
                    getattr(recorder, method)(*args)
            except (Exception, SystemExit) as error:
                self._fail(f"{method} raised {one_line(error)}", error)

    def _fail(self, what: str, error: BaseException | None = None) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._problem = f"{self.name} {what} (shown once; training continues)"
            log.info("%s", self._problem, exc_info=error)


def one_line(error: BaseException) -> str:
    """Return the type and text of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
