"""Show the progress of a sweep: as a live table on a terminal, otherwise as one line for each change."""

from typing import TYPE_CHECKING, Any, TextIO

from drl_cli.runs.table import NONE, number
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.clock import now
from drl_cli.utils.shown import cell, print, score_text

if TYPE_CHECKING:
    from rich.table import Table

REFRESH_S = 2.0
STYLES = {"done": "green", "running": "cyan", "failed": "red", "diverged": "red", "killed": "red"}


class SweepView:
    """Show a sweep on `stream`. If jobs will be added, `count` is the expected number of all jobs."""

    def __init__(self, sweep: Sweep, stream: TextIO, count: int = 0) -> None:
        self.sweep, self.stream, self.count, self._next_s = sweep, stream, count, 0.0
        self.live: Any = None  # rich's Live, only on a terminal
        if stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(table(sweep), console=Console(file=stream), auto_refresh=False)
            self.live.start()

    def changed(self, job: Job) -> None:
        if self.live is None:
            print(line(job, max(self.count, len(self.sweep.jobs))), file=self.stream, flush=True)
        self._next_s = 0.0

    def tick(self) -> None:
        """Draw the table again after a change, and every two seconds."""
        if self.live is not None and now() >= self._next_s:
            self._next_s = now() + REFRESH_S
            self.live.update(table(self.sweep), refresh=True)

    def close(self) -> None:
        """Draw the table for the last time, and leave it on the terminal."""
        if self.live is not None:
            self.live.update(table(self.sweep), refresh=True)
            self.live.stop()


def line(job: Job, count: int) -> str:
    """Return a line such as "[job 2 of 4] done  algo.lr=0.001  best -140.2  20,000 env steps  12 s  outputs/..."."""
    parts = [f"[job {job.number} of {count}] {job.status}", job.label]
    if job.status != "running":
        best, _, seconds = cells(job)
        steps = job.steps_text(head=None)
        units = ((best, f"best {best}"), (steps, steps), (seconds, f"{seconds} s"))
        parts += [text for cell, text in units if cell != NONE]
        parts += [str(job.run)] if job.run is not None else []
    return "  ".join(filter(None, parts))


def cells(job: Job) -> tuple[str, str, str]:
    """Return the job's best return, steps and seconds as text."""
    results = job.results()
    return score_text(results["best_return"]), job.steps_text(), number(results["wall_s"], ".0f")


def table(sweep: Sweep) -> "Table":
    """Return a table with a row for each job."""
    from rich.table import Table
    from rich.text import Text

    keys = sweep.differing_keys
    done = sum(job.is_done for job in sweep.jobs)
    title = Text(f"{cell(sweep.folder.name)}  {done} of {len(sweep.jobs)} done")
    drawn = Table(title=title, title_justify="left", box=None)
    for name in ("job", *keys, "status", "best", "steps", "seconds", "run"):
        drawn.add_column(
            Text(cell(name)), justify="right" if name in ("job", "best", "steps", "seconds") else "left", no_wrap=True
        )
    for job in sweep.jobs:
        values = [Text(cell(job.differs.get(key, ""))) for key in keys]
        status = Text(job.status, STYLES.get(job.status, "default"))
        drawn.add_row(str(job.number), *values, status, *cells(job), Text(cell(job.run.name if job.run else "")))
    return drawn
