"""`drl_cli.train`: drl-train as a function that raises exceptions instead of exiting."""

import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from drl_cli.cli.train import completed
from drl_cli.cli.train import train as train_composed
from drl_cli.errors import DONE, INTERRUPTED, UsageError, UserCodeFailed
from drl_cli.runtime.place.signals import SIGNAL_CODES
from drl_cli.settings.build import as_typed
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import mapping
from drl_cli.utils.outside import raised

Words: TypeAlias = str | Sequence[str] | Mapping[str, Any]  # Any: the value of a key, or the keys of a group
OnEvaluation: TypeAlias = Callable[[dict[str, Any]], object]  # Any: numbers, and is_best


class RunFailed(Exception):
    """A run ended with an exit code other than 0. `summary` is what `drl_cli.train` returns without an error."""

    def __init__(self, summary: dict[str, Any], reason: str) -> None:
        self.summary, self.exit_code = summary, int(summary["exit_code"])
        super().__init__(f"run {summary['run_id']} {summary['status']} (exit code {self.exit_code}){reason}")


def as_words(overrides: Words) -> list[str]:
    """Return `key=value` words of a command line in one string, of words, or of a mapping, which may be nested."""
    if isinstance(overrides, str):
        return shlex.split(overrides)
    return _typed(overrides) if isinstance(overrides, Mapping) else list(overrides)


def _typed(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return `key=value` for each value of a nested mapping."""
    words = list[str]()
    for name, value in values.items():
        is_group = isinstance(value, Mapping) and value
        words += _typed(value, f"{prefix}{name}.") if is_group else [f"{prefix}{name}={as_typed(value)}"]
    return words


def _named(on_evaluation: OnEvaluation) -> OnEvaluation:
    """Return the function with its errors as UserCodeFailed, which ends the run with exit code 4."""

    def call(values: dict[str, Any]) -> None:
        try:
            on_evaluation(values)
        except Exception as error:
            raise UserCodeFailed(f"on_evaluation {raised(error)}") from error

    return call


def train(words: list[str], on_evaluation: OnEvaluation | None = None) -> dict[str, Any]:
    """Train with `key=value` words, and return the summary. See `drl_cli.train`."""
    began = time.time()
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("drl_cli.train takes signals, so it has to be called in the main thread")
    command = read_command(words)
    if command.flags:
        raise UsageError(f"{command.flags[0]}: drl_cli.train takes key=value alone; drl-train takes flags")
    command, lines = completed(command, words)
    plain = mapping(command.overrides, command.config_file)
    if plain.get("explain"):
        raise UsageError("explain=true prints where values come from, and does not train: say it to drl-train")
    handlers = {number: signal.getsignal(number) for number in (*SIGNAL_CODES, signal.SIGUSR1)}
    try:
        notes = [line for line in lines if line is not None]
        called = on_evaluation and _named(on_evaluation)
        summary = train_composed(plain, words, notes, began, called)
    finally:
        for number, handler in handlers.items():  # because an interrupted run leaves the signals ignored
            signal.signal(number, handler)
    if summary["exit_code"] == INTERRUPTED:
        raise KeyboardInterrupt
    if summary["exit_code"] != DONE:
        path = Path(summary["folder"], "error.txt")
        reason = f": {path.read_text().strip().splitlines()[-1]}" if path.is_file() else ""
        raise RunFailed(summary, reason)
    return summary
