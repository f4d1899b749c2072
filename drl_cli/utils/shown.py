"""What a user sees: texts from files can't control the terminal, and train.log gets what the terminal shows."""

import builtins
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from drl_cli.utils.files import LogFile

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and newline, characters that change the direction of text, and lone surrogates."""


def shown(text: object) -> str:
    r"""Return a text with its control characters as escapes, such as \x1b. A text without any stays the same."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def cell(text: object) -> str:
    r"""Return a text for one cell of a table: `shown`, with newlines as \n."""
    return shown(text).replace("\n", r"\n")


def score_text(value: float | None) -> str:
    """Format a return: one decimal, or three significant digits if one decimal is wrong by more than 0.5 percent.

    Rewards may be of any size: 0.0312 would otherwise read as 0.0, and 0.96 as 1.0. None, NaN and infinity become "-".
    """
    if value is None or not math.isfinite(value):
        return "-"
    text = f"{value:.1f}"
    is_close = math.isclose(float(text), value, rel_tol=0.005, abs_tol=1e-9)  # 1e-9: a rounding error of a spread
    return text if is_close else f"{value:.3g}"


def relative_path(folder: Path) -> str:
    """Return the path as the user would type it: relative below the current folder, in quotes if it needs them."""
    return shlex.quote(os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder))


def print(*texts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print as Python's `print` does, but with control characters as escapes. Every module of drl-cli uses this one."""
    builtins.print(*map(shown, texts), sep=sep, end=end, file=file, flush=flush)


log = logging.getLogger(__name__)

MAX_EARLY = 10_000
"""Maximum number of messages that are kept until the log file is open."""


def tell(text: str) -> None:
    """Print a text for the user to stderr, and add it to the log of the run."""
    print(text, file=sys.stderr.stream if isinstance(sys.stderr, Logged) else sys.stderr)
    log.info("%s", text)


class Shown(logging.Formatter):
    """Formats messages for a terminal, with control characters as escapes."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


class Logged:
    """A text stream that adds complete lines to the log of the run, too: what code of the user prints."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self._rest = stream, ""

    def write(self, text: str) -> int:
        *lines, self._rest = f"{self._rest}{text}".split("\n")
        for line in filter(str.strip, lines):
            log.info("%s", shown(line))
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def _logging_prints() -> Iterator[None]:
    """Add to the log what is printed to `sys.stdout` and `sys.stderr` from now on."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    logged = {name: Logged(stream) for name, stream in before.items()}
    for name, stream in logged.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in logged.items():
            if getattr(sys, name) is stream:  # the panel may already have restored the stream from before its start
                setattr(sys, name, before[name])


@contextmanager
def run_log() -> Iterator[Callable[[Path], None]]:
    """Print the package's warnings to stderr. Yield a function that opens the log file.

    The file also gets the messages from before it was open, and what code of the user prints in this process.
    """
    from logging.handlers import MemoryHandler  # imports sockets, which most answers of a command do not need

    root = logging.getLogger("drl_cli")
    level, propagate = root.level, root.propagate
    root.setLevel(logging.INFO)
    root.propagate = False
    screen, early = logging.StreamHandler(sys.stderr), MemoryHandler(MAX_EARLY, logging.CRITICAL + 1)
    screen.setFormatter(Shown("warning: %(message)s"))
    screen.setLevel(logging.WARNING)
    handlers: list[logging.Handler] = [screen, early]
    for handler in handlers:
        root.addHandler(handler)

    def open_file(path: Path) -> None:
        file = LogFile(path)
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        early.setTarget(file)
        early.flush()
        root.removeHandler(early)
        root.addHandler(file)
        handlers.append(file)

    try:
        with _logging_prints():
            yield open_file
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(level)
        root.propagate = propagate
        handlers[-1].close()
