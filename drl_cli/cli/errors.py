"""Errors of a command: one to four lines, all problems at once, and an exit code."""

import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from drl_cli.utils.outside import raised_by

DONE, BUG, USAGE, MISSING, USER_CODE, DIVERGED, LOST, RESOURCES, CHECKPOINT, BELOW, SWEEP = range(11)
TERMINATED, INTERRUPTED = 75, 130


class UsageError(Exception):
    """Problems with a command, each a line for the user."""

    def __init__(self, problems: Sequence[str] | str, exit_code: int = USAGE) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        self.exit_code = exit_code
        super().__init__("; ".join(self.problems))


@contextmanager
def users_errors(modules: Sequence[str]) -> Iterator[None]:
    """What these modules of the user's raise becomes a UsageError (exit 4); any other error stays what it is."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if (module := raised_by(error, modules)) is None:
            raise
        text = " ".join(str(error).split())
        raise UsageError(f"{module} raised {type(error).__name__}: {text}", USER_CODE) from error


def report(error: UsageError) -> int:
    """Print the problems; returns the exit code."""
    if os.environ.get("DRL_DEBUG"):
        traceback.print_exception(error)
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    return error.exit_code


def fail(error: UsageError) -> NoReturn:
    """Print the problems and exit."""
    sys.exit(report(error))


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The known words most like this one, best first; case does not matter."""
    lower = {name.lower(): name for name in known}
    return [lower[found] for found in difflib.get_close_matches(word.lower(), list(lower), count, 0.6)]


def did_you_mean(word: str, known: Iterable[str], count: int = 1, quote: str = "") -> str:
    """' Did you mean X, Y?', or nothing."""
    found = nearest(word, known, count)
    return f" Did you mean {', '.join(quote + name + quote for name in found)}?" if found else ""
