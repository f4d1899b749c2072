"""The log of a run. The file train.log contains what the terminal shows and more details, with times."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from drl_cli.utils.files import LogFile
from drl_cli.utils.shown import print, shown

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

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the stream
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
