"""Errors of a command: one to four lines, all problems at once, and an exit code."""

import atexit
import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO, cast

from drl_cli.types import State
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


class _Outlives:
    """A stream that goes on, to nowhere, when what reads it has closed it, as `head` does."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            return self._leave()

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def end(self) -> None:
        """The last flush, at the process's end, when a test may have closed it."""
        with suppress(ValueError):
            self.flush()

    def _leave(self) -> int:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        return 0

    def __getattr__(self, name: str) -> Any:  # whatever a stream has
        return getattr(self._stream, name)


def outlive_closed_pipe() -> None:
    """From now on the command goes on where nobody reads its output any more: its run, above all, and its exit code."""
    if not isinstance(sys.stdout, _Outlives):
        stream = _Outlives(sys.stdout)
        sys.stdout = cast(TextIO, stream)  # it has all that a stream has
        atexit.register(stream.end)


def fail(error: UsageError) -> NoReturn:
    """Print the problems and exit."""
    sys.exit(report(error))


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The known words most like this one, best first; case does not matter, nor, in a short one, the letters' order."""
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), list(lower), count, 0.6)
    found = found or [name for name in lower if sorted(name) == sorted(word.lower())]
    return [lower[name] for name in found]


def did_you_mean(word: str, known: Iterable[str], count: int = 1, quote: str = "") -> str:
    """' Did you mean X, Y?', or nothing."""
    found = nearest(word, known, count)
    return f" Did you mean {', '.join(quote + name + quote for name in found)}?" if found else ""


class RunError(Exception):
    """A run that can't go on; the message is for the user."""

    exit_code = BUG


class EnvironmentFailed(RunError):
    """The user's environment raised."""

    exit_code = USER_CODE


class AlgorithmFailed(RunError):
    """An algorithm from outside the package raised, or its trainers drifted apart."""

    exit_code = USER_CODE


class AlgorithmRefused(RunError):
    """An algorithm can't run as it is configured."""

    exit_code = USAGE


class Diverged(RunError):
    """A loss or a parameter is NaN or infinite.

    `batch` are the columns of the update that went wrong, `is_data` tells whether a value in them was at fault.
    """

    exit_code = DIVERGED

    def __init__(self, message: str, batch: State | None = None, is_data: bool = False) -> None:
        self.batch, self.is_data = batch, is_data
        super().__init__(message)


class RoleLost(RunError):
    """A process died or stopped answering, beyond what restarts make up for."""

    exit_code = LOST


class CheckpointError(RunError):
    """A checkpoint that is missing, damaged, or not of this run; the message names the file."""

    exit_code = CHECKPOINT


class NodeGone(RoleLost):
    """The node that a role should run on has left the cluster."""


class ClusterUnfit(RunError):
    """The cluster that the user named can't be joined or can't run this; each problem is a line."""

    exit_code = USAGE

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))
