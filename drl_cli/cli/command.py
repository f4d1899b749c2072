"""Run a command. All commands share help, version, options, error reports, signals and exit codes."""

import atexit
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, TextIO, TypeVar, cast

from drl_cli.errors import (
    DONE,
    INTERRUPTED,
    RESOURCES,
    USER_CODE,
    ReportedError,
    UsageError,
    interruption,
    memory_problem,
)
from drl_cli.runtime.place.signals import SIGNAL_CODES, ignore_signals
from drl_cli.settings.options import parse, usage
from drl_cli.utils import outside
from drl_cli.utils.shown import print
from drl_cli.version import versions

T = TypeVar("T")

RUN_HELP = "a path, latest, a glob of one run, the start of a run id or a run's name (its newest run)"
CHECKPOINT_HELP = "best, last, a number of env steps or a folder's name"
OUTPUT_DIR_HELP = "where the runs are"
ENV_HELP = "an environment in place of the run's, with the same observations and actions"
TRUST_HELP = "use a run of somebody else whose config names code, which then runs as you; needed once"


def option(default: Any, help: str) -> Any:
    """Declare a field of a command's options, with its default and its line in --help."""
    return field(default=default, metadata={"help": help})


def run_command(
    name: str,
    options: type[T],
    answer: Callable[[T], int],
    about: str,
    *,
    examples: Sequence[str] = (),
    positional: str | None = None,
) -> None:
    """Parse the command line into the dataclass `options`, call `answer`, and exit with the code that it returns.

    A bare word is the value of the option `positional`. `about` and `examples` are for --help.
    """
    run_words(
        lambda words: answer(parse(words, options, positional)),
        lambda words: usage(name, options, about, examples),
    )


def run_words(
    answer: Callable[[list[str]], int], help_of: Callable[[list[str]], str], *, needs_words: bool = False
) -> None:
    """Call `answer` with the words of the command line, and exit with the code that it returns.

    --help, or an empty command line if `needs_words`, prints the text that `help_of` returns for the other words.
    """
    words = sys.argv[1:]
    leave_current_folder()
    outlive_closed_pipe()
    if not faulthandler.is_enabled():
        faulthandler.enable(all_threads=False)  # a crash of the user's code prints its traceback
    exit_code, is_over = DONE, False

    def end(number: int, frame: object) -> None:
        if not is_over:
            # not SystemExit, for which a user's code would be blamed that runs at this moment
            raise KeyboardInterrupt(SIGNAL_CODES[signal.Signals(number)])

    for number in SIGNAL_CODES:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, end)
    try:
        if {"--help", "-h"} & set(words) or (needs_words and not words):
            print(help_of([word for word in words if word not in ("--help", "-h")]))
        elif "--version" in words:
            print(version_text())
        else:
            exit_code = answer(words)
    except ReportedError as error:
        exit_code = report(error)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, MemoryError | RuntimeError) and (line := memory_problem(error)) is not None:
            exit_code = report(UsageError(line, RESOURCES))
        elif (signalled := interruption(error)) is not None:
            exit_code = signalled.args[0] if signalled.args else INTERRUPTED
        else:
            raise
    is_over = True
    atexit.register(ignore_signals)
    if exit_code != DONE:
        sys.exit(exit_code)


def leave_current_folder() -> None:
    """Remove the current folder from the import path, to which `python -m` adds it: its files are no libraries."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    outside.folders.clear()


def report(error: ReportedError) -> int:
    """Print the problems of an error, and return its exit code. DRL_DEBUG=1 adds the traceback."""
    is_debug = bool(os.environ.get("DRL_DEBUG"))
    if is_debug:
        traceback.print_exception(error)
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    if error.exit_code == USER_CODE and error.__cause__ is not None and not is_debug:
        print("  DRL_DEBUG=1 before the command prints the traceback", file=sys.stderr)
    return error.exit_code


def version_text() -> str:
    """Return the version of this package, of Python, and of the most important dependencies."""
    ours, *others = versions("torch", "ray", "gymnasium", "numpy", "hydra-core").items()
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{' '.join(ours)}  (Python {python}, {', '.join(map(' '.join, others))})"


class _PipeProof:
    """A text stream that discards its text once the reader, such as `head`, has closed the pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            return self._drop()

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def end(self) -> None:
        """Flush when the process ends. Ignore a stream that a test has already closed."""
        with suppress(ValueError):
            self.flush()

    def _drop(self) -> int:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_closed_pipe() -> None:
    """Let a command, and the run that it started, finish normally after the reader of stdout has closed the pipe."""
    if not isinstance(sys.stdout, _PipeProof):
        stream = _PipeProof(sys.stdout)
        sys.stdout = cast(TextIO, stream)  # __getattr__ supplies the rest of the stream's interface
        atexit.register(stream.end)
