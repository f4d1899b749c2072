"""Displays of a run: plain lines, JSON lines or nothing. The panel is in panel.py."""

import dataclasses
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from drl_cli.metrics.status import Status, clock, evaluation_line, finite, report_line
from drl_cli.utils.shown import print

log = logging.getLogger(__name__)

AWAITS_S = 5.0
"""While a run starts, Plain prints a line at least this often [s]."""


class Display:
    """Shows nothing. Subclasses override methods, each of which shows one event. Warnings and errors go to stderr."""

    def __init__(self, out: TextIO, period_s: float) -> None:
        self.out, self.period_s = out, period_s
        self.reported = -math.inf  # time of the last report [s]

    def line(self, text: str) -> None: ...
    def awaits(self, status: Status) -> None: ...
    def report(self, status: Status) -> None: ...
    def evaluation(self, status: Status, statistics: Mapping[str, float], position: int, is_best: bool) -> None: ...
    def tick(self, status: Status) -> None: ...
    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None: ...
    def close(self) -> None: ...

    def print(self, text: str) -> None:
        with suppress(OSError):  # the output may be a file on a full disk
            print(text, file=self.out, flush=True)

    def is_due(self, status: Status) -> bool:
        """Return whether the next report is due, and if so, restart the period. While the run starts, return False.

        The last report of training, which awaits nothing, is always due.
        """
        is_last = status.state == "ending" and not status.awaits
        if status.state == "starting" or (not is_last and time.monotonic() - self.reported < self.period_s):
            return False
        self.reported = time.monotonic()
        return True


def is_terminal(out: TextIO) -> bool:
    """Return whether `out` is a terminal that supports cursor movement."""
    return out.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def announce(out: TextIO, what: str) -> None:
    """Print a temporary line if `out` is a terminal. `erase` removes this line."""
    if is_terminal(out):
        print(f"{what} ...", end="\r", file=out, flush=True)


def erase(out: TextIO) -> None:
    """Remove the line that `announce` printed."""
    if is_terminal(out):
        out.write("\x1b[2K")
        out.flush()


class Plain(Display):
    """Prints lines of text: a report every `period_s`, each evaluation, and what the run is waiting for.

    With `is_log`, adds the lines to the log of the run instead.
    """

    def __init__(self, out: TextIO, period_s: float, is_log: bool = False) -> None:
        super().__init__(out, period_s)
        self.shown, self.shown_at, self.is_log = "", -math.inf, is_log

    def print(self, text: str) -> None:
        if self.is_log:
            for line in text.splitlines():
                log.info("%s", line)
        else:
            super().print(text)

    def line(self, text: str) -> None:
        self.print(text)

    def awaits(self, status: Status) -> None:
        """Print at once what a starting run waits for. Later, only `tick` prints this, if the wait goes on."""
        if status.state == "starting":
            self._show(status)

    def tick(self, status: Status) -> None:
        """Print what the run is waiting for. Before the run has a title, print nothing: an error may still follow."""
        if not status.title:
            return
        period_s = AWAITS_S if status.state == "starting" else self.period_s
        if status.awaits != self.shown or time.monotonic() - max(self.shown_at, self.reported) >= period_s:
            self._show(status)

    def report(self, status: Status) -> None:
        if self.is_due(status):
            self.shown = status.awaits
            self.print(report_line(status))

    def evaluation(self, status: Status, statistics: Mapping[str, float], position: int, is_best: bool) -> None:
        self.print(evaluation_line(status, statistics, position, is_best))

    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None:
        self.print(text)

    def _show(self, status: Status) -> None:
        self.shown, self.shown_at = status.awaits, time.monotonic()
        if status.awaits:
            self.print(f"{clock(time.time() - status.started):>9}  waiting for {status.awaited}")


class Json(Display):
    """Prints the same events as Plain, each as a JSON object in one line. `event` is the kind of event."""

    def line(self, text: str) -> None:
        self._put("note", {"text": text})

    def awaits(self, status: Status) -> None:
        if status.awaits:
            self._put("awaits", {"what": status.awaits, "wall_s": round(status.wall_s, 3)})

    def report(self, status: Status) -> None:
        if self.is_due(status):
            self._put("status", dataclasses.asdict(status))

    def evaluation(self, status: Status, statistics: Mapping[str, float], position: int, is_best: bool) -> None:
        unit = "env_steps" if status.total_updates is None else "opt_steps"
        self._put("evaluation", {unit: position, "is_best": is_best, **statistics})

    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None:
        self._put("end", summary)

    def _put(self, event: str, fields: Mapping[str, Any]) -> None:
        self.print(json.dumps({"event": event, **finite(fields)}))
