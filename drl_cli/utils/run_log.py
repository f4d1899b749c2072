"""The log of a run. The file train.log contains what the terminal shows and more details, with times."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drl_cli.utils.files import LogFile
from drl_cli.utils.shown import print, shown

log = logging.getLogger(__name__)

MAX_EARLY = 10_000
"""Maximum number of messages that are kept until the log file is open."""


def tell(text: str) -> None:
    """Print a text for the user to stderr, and add it to the log of the run."""
    print(text, file=sys.stderr)
    log.info("%s", text)


class Shown(logging.Formatter):
    """Formats messages for a terminal, with control characters as escapes."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


@contextmanager
def run_log() -> Iterator[Callable[[Path], None]]:
    """Print the package's warnings to stderr. Yield a function that opens the log file.

    The file also gets the messages from before it was open.
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
        yield open_file
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(level)
        root.propagate = propagate
        handlers[-1].close()
