"""drl-watch: shows how a run goes that another process does, in the background, elsewhere or on a cluster."""

import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from drl_cli.cli.command import run_command
from drl_cli.errors import LOST
from drl_cli.metrics.console import TICK_S, make_display
from drl_cli.metrics.display import Display
from drl_cli.metrics.status import Status
from drl_cli.metrics.text import clock
from drl_cli.runs.end_text import end_text, relative_path
from drl_cli.runs.find import find_run
from drl_cli.runs.run import RUN_LOCK, read_json
from drl_cli.utils.locks import is_locked
from drl_cli.utils.ranges import Positive


@dataclass(frozen=True)
class Options:
    """Options of drl-watch."""

    run: str = field(default="latest", metadata={"help": "a path, latest, a glob or the start of a run id"})
    console: Literal["auto", "plain", "json"] = field(
        default="auto", metadata={"help": "as drl-train's: auto, plain, json"}
    )
    period_s: Positive = field(default=30.0, metadata={"help": "seconds between two lines where there is no panel"})
    stale_s: Positive = field(
        default=60.0, metadata={"help": "seconds without a report after which a run on another machine counts as dead"}
    )
    output_dir: str = field(default="outputs", metadata={"help": "where the runs are"})


def main() -> None:
    """Run drl-watch."""
    run_command(
        "drl-watch",
        Options,
        lambda options: watch(find_run(options.run, options.output_dir), options),
        "show how a run goes until it ends; Ctrl-C leaves it alone",
        positional="run",
    )


def watch(folder: Path, options: Options) -> int:
    """Show the run until it is over; returns the exit code."""
    display = make_display(options.console, sys.stdout, options.period_s)
    try:
        return _follow(folder, Shown(display), options.stale_s)
    finally:
        display.close()


def _follow(folder: Path, shown_so_far: "Shown", stale_s: float) -> int:
    newest, since = first_status(folder), time.monotonic()
    shown_so_far.begin(newest, folder)
    while True:
        run = read_json(folder / "run.json")
        if (status := Status.read(folder)) is not None and status.written != newest.written:
            newest, since = status, time.monotonic()
        silent_s = time.monotonic() - since
        end = how_it_ended(folder, run, silent_s, stale_s)
        if end is not None:
            return shown_so_far.end(newest, folder, end)
        shown_so_far.show(newest, silent_s)
        time.sleep(TICK_S)


def first_status(folder: Path) -> Status:
    """The status that there is, or one that says that there is none yet."""
    missing = Status(title=folder.name, awaits="its first report", started=time.time(), written=0.0)
    return Status.read(folder) or missing


def how_it_ended(folder: Path, run: Mapping[str, Any], silent_s: float, stale_s: float) -> dict[str, Any] | None:
    """The summary of a run that has ended, or what there is to say of one that was killed; None while it goes on.

    On its own machine a run holds a lock as long as it lives, however silent it is. `silent_s` is how long there was no
    new status here. Any: json.
    """
    if run.get("status") == "running":
        here = run.get("host") == socket.gethostname()
        held = _is_held(folder / RUN_LOCK) if here else None
        if held or (held is None and silent_s < stale_s):
            return None
        run = read_json(folder / "run.json")  # it may have ended just now
        if run.get("status") == "running":
            gone = "its process is gone" if held is False else f"there was no report for {clock(silent_s)}"
            why = f"nobody writes any more: {gone} (process {run.get('pid')} on {run.get('host')})"
            return {"status": "killed", "exit_code": LOST, "why": why}
    summary = read_json(folder / "summary.json")
    return {"status": run.get("status", "failed"), "exit_code": LOST, **summary}


def _is_held(path: Path) -> bool | None:
    """Whether a process has this lock; None where that can't be known."""
    try:
        return is_locked(path)
    except OSError:  # a file of somebody else's, or a file system without locks
        return None


class Shown:
    """What of a run was shown: an evaluation is shown once."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.last_score = -1

    def begin(self, status: Status, folder: Path) -> None:
        """Name the run; the evaluations that were made before are only in the panel."""
        self.display.line(f"{status.title}  ->  {relative_path(folder)}")
        self.last_score = max((env_steps for env_steps, _ in status.scores), default=-1)
        self.display.awaits(status)

    def show(self, status: Status, silent_s: float) -> None:
        """The newest status, and how old it is where that is unusual."""
        self._evaluations(status)
        if silent_s > 5 * TICK_S:
            status = replace(status, note=f"no report for {clock(silent_s)}")
        self.display.report(status)
        self.display.tick(status)

    def end(self, status: Status, folder: Path, summary: Mapping[str, Any]) -> int:
        """How the run ended; returns the exit code."""
        self._evaluations(status)
        text = summary.get("why") or end_text(summary, folder)
        if summary["status"] == "killed":
            last = f"its last report was of step {status.env_steps:,}, {clock(status.wall_s)} after its start"
            text = f"{text}; {last}\nnext: drl-train resume={relative_path(folder)}"
        self.display.tick(replace(status, state=str(summary["status"]), awaits="", note=str(summary.get("why", ""))))
        self.display.close()
        self.display.end(status, summary, text)
        return int(summary["exit_code"])

    def _evaluations(self, status: Status) -> None:
        for env_steps, mean in status.scores:
            if env_steps > self.last_score:
                self.last_score = env_steps
                is_best = status.best is not None and status.best[0] == env_steps
                self.display.evaluation(status, {"mean": mean}, env_steps, is_best)


if __name__ == "__main__":
    main()
