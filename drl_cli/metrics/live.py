"""Live: a panel at the bottom of the terminal. Other lines appear above the panel."""

import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import rich.live
from rich.console import Console

from drl_cli.metrics.display import Display
from drl_cli.metrics.panel import panel
from drl_cli.metrics.status import Status
from drl_cli.utils.shown import shown


class AsciiConsole(Console):
    """Draws with ASCII characters. Python itself writes UTF-8 even if the locale is C."""

    @property
    def encoding(self) -> str:
        return "ascii"


def is_ascii(environment: Mapping[str, str]) -> bool:
    """Return whether the variables of the locale ask for ASCII."""
    values = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, values), None) in ("C", "POSIX")


class Live(Display):
    """Draws the newest status at every tick. The last panel stays on the terminal after the run."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out, 0.0)
        self.status = Status(started=time.time())
        self.console = (AsciiConsole if is_ascii(os.environ) else Console)(file=out)
        self.live = rich.live.Live(
            console=self.console,
            auto_refresh=False,
            get_renderable=lambda: panel(self.status, time.time()),
            redirect_stderr=sys.stderr.isatty(),  # if stderr is a file, warnings must go to this file
        )
        self.width = self.console.width  # at the last panel
        self.live.start()

    def line(self, text: str) -> None:
        self._fit()
        self.console.print(shown(text), markup=False, highlight=False, soft_wrap=True)  # a command has to stay one line

    def awaits(self, status: Status) -> None:
        self.tick(status)

    def report(self, status: Status) -> None:
        self.status = status

    def evaluation(self, status: Status, statistics: Mapping[str, float], position: int, is_best: bool) -> None:
        self.status = status

    def tick(self, status: Status) -> None:
        self.status = status
        self._fit()
        self.live.refresh()

    def _fit(self) -> None:
        """If the terminal is narrower than at the last panel, erase all rows over which it has wrapped the panel."""
        width, before = self.console.width, self.width
        self.width = width
        if height := self.live._live_render.last_render_height if width < before else 0:
            rows = min(height * math.ceil(before / width), self.console.height)
            self.console.file.write("\r" + f"\x1b[{rows - 1}A" * (rows > 1) + "\x1b[J")  # up, erase the rest
            self.live._live_render._shape = None  # nothing is left to erase

    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None:
        self.line(text)

    def close(self) -> None:
        self._fit()
        self.live.transient = not self.status.title  # remove the panel of a run that did not start
        self.live.stop()
