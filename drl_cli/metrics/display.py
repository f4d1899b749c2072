"""The ways to show a run: plain lines, JSON lines or nothing. The panel is in live.py."""

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from drl_cli.metrics.status import Status, finite
from drl_cli.metrics.text import awaits_line, evaluation_line, report_line

AWAITS_S = 5.0
"""While a run starts, plain text says at least this often [s] what is waited for."""


class Display:
    """One way to show a run; lines are of text that stands for itself. What is not overridden shows nothing."""

    def line(self, text: str) -> None: ...
    def awaits(self, status: Status) -> None: ...
    def report(self, status: Status) -> None: ...
    def evaluation(self, status: Status, statistics: Mapping[str, float], env_steps: int, is_best: bool) -> None: ...
    def tick(self, status: Status) -> None: ...
    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None: ...
    def close(self) -> None: ...


def is_terminal(out: TextIO) -> bool:
    """Whether a panel can be drawn there."""
    return out.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def announce(out: TextIO, what: str) -> None:
    """On a terminal say at once what is done, until there is something to show; `erase` takes it back."""
    if is_terminal(out):
        print(f"{what} ...", end="\r", file=out, flush=True)


def erase(out: TextIO) -> None:
    """Take back what was announced."""
    if is_terminal(out):
        print("\x1b[2K", end="", file=out, flush=True)


class Quiet(Display):
    """Shows nothing; warnings and errors go to stderr by other ways."""

    def __init__(self, out: TextIO, period_s: float) -> None:
        self.out, self.period_s = out, period_s
        self.reported = -math.inf  # when the last report was shown [s]

    def print(self, text: str) -> None:
        """One line, at once."""
        with suppress(OSError):  # it goes to a file on a disk that is full
            print(text, file=self.out, flush=True)

    def is_due(self, status: Status) -> bool:
        """Whether it is time to show a report, of a run that has begun to collect; it is then taken as shown."""
        if status.state == "starting" or time.monotonic() - self.reported < self.period_s:
            return False
        self.reported = time.monotonic()
        return True


class Plain(Quiet):
    """Lines of text: from the first steps on every `period_s`, at each evaluation, and of what a run waits for."""

    def __init__(self, out: TextIO, period_s: float) -> None:
        super().__init__(out, period_s)
        self.said, self.said_at = "", -math.inf

    def line(self, text: str) -> None:
        self.print(text)

    def awaits(self, status: Status) -> None:
        """At once while the run starts; later only what takes long, by `tick`."""
        if status.state == "starting":
            self._say(status)

    def tick(self, status: Status) -> None:
        """Nothing before the run has a title: there may be an error to say first."""
        if not status.title:
            return
        is_long_ago = time.monotonic() - self.said_at >= AWAITS_S
        if status.awaits != self.said or (status.state == "starting" and is_long_ago):
            self._say(status)

    def report(self, status: Status) -> None:
        if self.is_due(status):
            self.said = status.awaits
            self.print(report_line(status))

    def evaluation(self, status: Status, statistics: Mapping[str, float], env_steps: int, is_best: bool) -> None:
        self.print(evaluation_line(status, statistics, env_steps, is_best))

    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None:
        self.print(text)

    def _say(self, status: Status) -> None:
        self.said, self.said_at = status.awaits, time.monotonic()
        if status.awaits:
            self.print(awaits_line(status, time.time() - status.started))


class Json(Quiet):
    """What Plain says, one object a line; `event` says what it is."""

    def line(self, text: str) -> None:
        self._put("note", {"text": text})

    def awaits(self, status: Status) -> None:
        if status.awaits:
            self._put("awaits", {"what": status.awaits, "wall_s": round(status.wall_s, 3)})

    def report(self, status: Status) -> None:
        if self.is_due(status):
            self._put("status", status.json())

    def evaluation(self, status: Status, statistics: Mapping[str, float], env_steps: int, is_best: bool) -> None:
        self._put("evaluation", {"env_steps": env_steps, "is_best": is_best, **statistics})

    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None:
        self._put("end", summary)

    def _put(self, event: str, fields: Mapping[str, Any]) -> None:
        self.print(json.dumps({"event": event, **finite(fields)}))
