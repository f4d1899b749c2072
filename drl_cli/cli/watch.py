"""drl-watch: show the progress of a run of another process, from the files in its folder."""

import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from drl_cli.cli.command import OUTPUT_DIR_HELP, RUN_HELP, option, run_command
from drl_cli.errors import LOST
from drl_cli.metrics.console import TICK_S, make_display
from drl_cli.metrics.display import Display
from drl_cli.metrics.status import Status, clock, step_text
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.find import find_run
from drl_cli.run_folder.saved_run import read_json
from drl_cli.runs.end_text import end_text
from drl_cli.utils.files import is_locked
from drl_cli.utils.ranges import Positive
from drl_cli.utils.shown import relative_path


@dataclass(frozen=True)
class Options:
    """Options of drl-watch."""

    run: str = option("latest", RUN_HELP)
    console: Literal["auto", "plain", "json"] = option("auto", "as drl-train's: auto, plain, json")
    period_s: Positive = option(30.0, "seconds between two lines without a panel")
    stale_s: Positive = option(60.0, "seconds without a report after which a run on another machine counts as dead")
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def main() -> None:
    """Run drl-watch."""
    about = "show how a run goes until it ends; Ctrl-C leaves it alone"
    run_command("drl-watch", Options, watch, about, positional="run")


def watch(options: Options) -> int:
    """Show a run until it ends. Return its exit code, or LOST if it was killed."""
    folder = find_run(options.run, options.output_dir)
    display = make_display(options.console, sys.stdout, options.period_s)
    newest, since = Status.read(folder), time.monotonic()
    if newest is None:
        newest = Status(title=folder.name, awaits="its first report", started=time.time(), written=0.0)
    shown = max((position for position, _ in newest.scores), default=-1)  # of the evaluations; later ones are shown
    display.line(f"{newest.title}  ->  {relative_path(folder)}")
    display.awaits(newest)
    try:
        while True:
            run = read_json(folder / "run.json")
            if (status := Status.read(folder)) is not None and status.written != newest.written:
                newest, since = status, time.monotonic()
            silent_s = time.monotonic() - since
            summary = how_it_ended(folder, run, silent_s, options.stale_s)
            shown = show_evaluations(display, newest, shown)
            if summary is not None:
                return show_end(display, newest, summary, folder)
            note = f"no report for {clock(silent_s)}" if silent_s > 5 * TICK_S else ""
            display.report(current := replace(newest, note=note))
            display.tick(current)
            time.sleep(TICK_S)
    finally:
        display.close()


def how_it_ended(folder: Path, run: Mapping[str, Any], silent_s: float, stale_s: float) -> dict[str, Any] | None:
    """Return the summary of a run that has ended or was killed, or None while the run continues.

    `run` is the content of run.json. A run on this machine holds a lock while it lives. A run on another machine counts
    as dead after `stale_s` seconds without a new status. `silent_s` is the time [s] since the last status.
    """
    if run.get("status") == "running":
        held = None
        if run.get("host") == socket.gethostname():
            with suppress(OSError):  # another user's file, or a file system without locks
                held = is_locked(folder / RUN_LOCK)
        if held or (held is None and silent_s < stale_s):
            return None
        run = read_json(folder / "run.json")  # the run may have ended after `run` was read
        if run.get("status") == "running":
            gone = "its process is gone" if held is False else f"there was no report for {clock(silent_s)}"
            why = f"nobody writes any more: {gone} (process {run.get('pid')} on {run.get('host')})"
            return {"status": "killed", "exit_code": LOST, "why": why}
    summary = read_json(folder / "summary.json")
    return {"status": run.get("status", "failed"), "exit_code": LOST, **summary}


def show_evaluations(display: Display, status: Status, shown: int) -> int:
    """Show the evaluations after the position `shown`. Return the position of the last one."""
    for position, mean in status.scores:
        if position > shown:
            shown = position
            is_best = status.best is not None and status.best[0] == position
            display.evaluation(status, {"mean": mean}, position, is_best)
    return shown


def show_end(display: Display, status: Status, summary: Mapping[str, Any], folder: Path) -> int:
    """Show the end of a run. Return its exit code."""
    text = summary.get("why") or end_text(summary, folder)
    if summary["status"] == "killed":
        at = f"{step_text(status)} {status.position:,}, {clock(status.wall_s)}"
        last = f"its last report was of {at} after its start"
        text = f"{text}; {last}\nnext: drl-train resume={relative_path(folder)}"
    display.tick(replace(status, state=str(summary["status"]), awaits="", note=str(summary.get("why", ""))))
    display.close()
    display.end(status, summary, text)
    return int(summary["exit_code"])


if __name__ == "__main__":
    main()
