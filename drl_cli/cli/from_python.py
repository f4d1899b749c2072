"""`drl_cli.train`: drl-train as a function that raises exceptions instead of exiting."""

import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drl_cli.cli.train import train as train_composed
from drl_cli.errors import DONE, INTERRUPTED, UsageError
from drl_cli.runs.auto import naming_choice, with_auto
from drl_cli.runs.resume import named_run, with_config_of
from drl_cli.runtime.place.signals import SIGNAL_CODES
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import mapping


class RunFailed(Exception):
    """A run ended with an exit code other than 0. `summary` holds the same values as summary.json."""

    def __init__(self, summary: dict[str, Any], reason: str) -> None:
        self.summary, self.exit_code = summary, int(summary["exit_code"])
        super().__init__(f"run {summary['run_id']} {summary['status']} (exit code {self.exit_code}){reason}")


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """Train with `key=value` strings, and return the summary. See `drl_cli.train`."""
    began = time.time()
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("drl_cli.train takes signals, so it has to be called in the main thread")
    command = read_command(list(overrides))
    if command.flags:
        raise UsageError(f"{command.flags[0]}: drl_cli.train takes key=value alone; drl-train takes flags")
    command, auto_line = with_auto(with_config_of(named_run(command), command))
    with naming_choice(auto_line):
        check_command(command)
    plain = mapping(command.overrides, command.config_file)
    if plain.get("explain"):
        raise UsageError("explain=true prints where values come from, and does not train: say it to drl-train")
    handlers = {number: signal.getsignal(number) for number in (*SIGNAL_CODES, signal.SIGUSR1)}
    try:
        summary = train_composed(plain, list(overrides), [auto_line] if auto_line is not None else [], began)
    finally:
        for number, handler in handlers.items():  # because an interrupted run leaves the signals ignored
            signal.signal(number, handler)
    if summary["exit_code"] == INTERRUPTED:
        raise KeyboardInterrupt
    if summary["exit_code"] != DONE:
        errors = Path(str(plain["output_dir"])).glob(f"*/*/{summary['run_id']}/error.txt")
        reasons = [path.read_text().strip().splitlines()[-1] for path in errors]
        raise RunFailed(summary, "".join(f": {reason}" for reason in reasons))
    return summary
