"""The console shows a run in the format chosen by `console=`, and writes the run's status file for drl-watch."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from drl_cli.metrics.display import Display, Json, Plain, is_terminal
from drl_cli.metrics.status import WARM_UP, Status

if TYPE_CHECKING:  # imported with the first run
    from drl_cli.metrics.printed import Prints

Kind = Literal["auto", "plain", "json", "quiet"]

TICK_S = 2.0


class Console:
    """Keeps the newest status, and shows it on a display and in the log of the run.

    As a context manager, it runs a thread that calls `tick` of the display.

    `on_evaluation`, if set, is called with the values of each evaluation.

    `started` is the start time of the run's process [s since the epoch]. `period_s` is the time between two printed
    reports, and `tick_s` the time between two updates of the display.
    """

    def __init__(self, kind: Kind, out: TextIO, started: float, period_s: float = 30.0, tick_s: float = TICK_S) -> None:
        self.status = Status(started=started, written=started, host=socket.gethostname(), pid=os.getpid())
        self.folder: Path | None = None
        self.tick_s = tick_s
        self.prints: Prints | None = None
        self.display, self.log = make_display(kind, out, period_s), Plain(out, period_s, is_log=True)
        self.measure: Callable[[], Mapping[str, Any]] | None = None
        self.on_evaluation: Callable[[dict[str, Any]], object] | None = None  # Any: numbers, and is_best
        self._lock, self._wake = threading.RLock(), threading.Event()
        self._reports: deque[dict[str, Any]] = deque()  # not shown yet
        self._has_thread = self._is_over = False

    def __enter__(self) -> "Console":
        self.update(awaits="the environment")
        self._show("tick", self.status)
        self._has_thread = True
        threading.Thread(target=self._follow, name="console", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, folder: Path) -> None:
        from drl_cli.metrics.printed import Prints

        self.folder, self.prints = folder, Prints(folder)

    def line(self, text: str) -> None:
        with self._lock:
            self._show_reports()
            self._show("line", text)

    def update(self, **fields: Any) -> None:
        """Change the status without displaying it. The numbers of env steps and of warm-up rows never fall.

        While a call runs, its steps count as rows of the warm-up, but the last rows of an n-step return end later.
        """
        with self._lock:
            self._show_reports()
            self._change(fields)

    def _change(self, fields: dict[str, Any]) -> None:
        fields["env_steps"] = max(self.status.env_steps, fields.get("env_steps", 0))
        if fields.get("awaits") == self.status.awaits == WARM_UP:
            fields["done"] = max(self.status.done or 0, fields["done"])
        changed, moment = replace(self.status, **fields), time.time()
        self.status = replace(changed, written=moment, wall_s=moment - changed.started)
        if self.folder is not None:
            with suppress(OSError):  # if the disk is full, the run continues, and drl-watch shows an old status
                self.status.write(self.folder)

    def awaits(self, what: str) -> None:
        with self._lock:
            self.update(awaits=what, awaits_s=None, done=None, needed=None, done_per_s=None)
            self._show("awaits", self.status)

    def report(self, **fields: Any) -> None:
        """Show a report. The console's thread does this if it runs: a slow terminal or disk must not delay training."""
        self._reports.append(fields)
        if self._has_thread:
            self._wake.set()
        else:
            self.update()

    def evaluation(self, statistics: Mapping[str, float], position: int, is_best: bool) -> None:
        with self._lock:
            self._show_reports()
            evaluated = self.status.evaluated(position, statistics["mean"])
            self.update(scores=evaluated.scores, best=evaluated.best)
            self._show("evaluation", self.status, statistics, position, is_best)
        if self.on_evaluation is not None:  # without the lock, so that a slow function does not stop the display
            unit = "env_steps" if self.status.total_updates is None else "opt_steps"
            self.on_evaluation({unit: position, "is_best": is_best, **statistics})

    def end(self, summary: Mapping[str, Any], text: str) -> None:
        with self._lock:
            self.update(state=str(summary["status"]), awaits="", done=None, needed=None)
            self._show_prints()
            self._show("tick", self.status)
            self.close()
            self._show("end", self.status, summary, text)

    def close(self) -> None:
        with self._lock:
            self._show_reports()
            self._is_over, self._has_thread = True, False
            self._wake.set()
            self.display.close()

    def _show(self, event: str, *args: Any) -> None:
        for display in (self.display, self.log):
            getattr(display, event)(*args)

    def measures(self, measure: Callable[[], Mapping[str, Any]] | None) -> None:
        """Update the status with the fields that `measure` returns, at every tick from now on. With None, stop."""
        with self._lock:
            self.measure = measure

    def _follow(self) -> None:
        due = time.monotonic() + self.tick_s
        while not self._is_over:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            with self._lock:
                self._show_reports()
                if self._is_over or time.monotonic() < due:
                    continue
                due = time.monotonic() + self.tick_s
                if self.measure is not None:
                    self.update(**self.measure())
                self._show_prints()
                self._show("tick", self.status)

    def _show_reports(self) -> None:
        while self._reports:
            self._change(self._reports.popleft())
            self._show("report", self.status)

    def _show_prints(self) -> None:
        for line in self.prints.take() if self.prints is not None else ():
            self._show("line", line)


def make_display(kind: Kind, out: TextIO, period_s: float) -> Display:
    """Create a display. For `auto`, this is the panel on a terminal, and plain lines elsewhere."""
    if kind == "auto" and is_terminal(out):
        from drl_cli.metrics.panel import Live  # imported here because only Live needs rich

        return Live(out)
    return {"json": Json, "quiet": Display}.get(kind, Plain)(out, period_s)
