"""Table: how the jobs of a sweep stand; live on a terminal, a line at each change elsewhere."""

from typing import TYPE_CHECKING, Any, TextIO

from drl_cli.sweeps.job import Job
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.clock import now

if TYPE_CHECKING:
    from rich.table import Table

REFRESH_S = 2.0
STYLES = {"done": "green", "running": "cyan", "failed": "red", "diverged": "red", "killed": "red"}


class View:
    """Of a sweep on a stream, of which so many jobs are expected; `close` leaves the last table there."""

    def __init__(self, sweep: Sweep, stream: TextIO, count: int = 0) -> None:
        self.sweep, self.stream, self.count, self._next = sweep, stream, count, 0.0
        self.live: Any = None  # rich's Live, on a terminal
        if stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(table(sweep), console=Console(file=stream), auto_refresh=False)
            self.live.start()

    def changed(self, job: Job) -> None:
        """A job has started or ended."""
        if self.live is None:
            print(line(job, max(self.count, len(self.sweep.jobs))), file=self.stream, flush=True)
        self._next = 0.0

    def tick(self) -> None:
        """Look again every two seconds."""
        if self.live is not None and now() >= self._next:
            self._next = now() + REFRESH_S
            self.live.update(table(self.sweep), refresh=True)

    def close(self) -> None:
        """The last look."""
        if self.live is not None:
            self.live.update(table(self.sweep), refresh=True)
            self.live.stop()


def line(job: Job, count: int) -> str:
    """[job 2 of 4] done  algo.lr=0.001  best -140.2  20,000 steps  12 s  outputs/..."""
    differs = " ".join(f"{key}={value}" for key, value in job.differs.items())
    values = [] if job.status == "running" else [text for text in cells(job) if text != "-"]
    run = [str(job.run)] if job.run is not None and job.status != "running" else []
    return "  ".join([f"[job {job.number} of {count}] {job.status}", *filter(None, [differs]), *values, *run])


def cells(job: Job) -> list[str]:
    """Best return, environment steps and seconds as they are shown."""
    known = job.progress()
    best = "-" if known["best_return"] is None else f"best {known['best_return']:.1f}"
    steps = "-" if known["env_steps"] is None else f"{known['env_steps']:,} steps"
    seconds = "-" if known["wall_s"] is None else f"{known['wall_s']:.0f} s"
    return [best, steps, seconds]


def table(sweep: Sweep) -> "Table":
    """One row per job."""
    from rich.table import Table

    keys = list(dict.fromkeys(key for job in sweep.jobs for key in job.differs))
    done = sum(job.is_done for job in sweep.jobs)
    made = Table(title=f"{sweep.folder.name}  {done} of {len(sweep.jobs)} done", title_justify="left", box=None)
    for name in ("job", *keys, "status", "best", "steps", "seconds", "run"):
        made.add_column(name, justify="right" if name in ("job", "best", "steps", "seconds") else "left", no_wrap=True)
    for job in sweep.jobs:
        best, steps, seconds = (
            text.removeprefix("best ").removesuffix(" steps").removesuffix(" s") for text in cells(job)
        )
        values = (job.differs.get(key, "") for key in keys)
        status = f"[{STYLES.get(job.status, 'default')}]{job.status}[/]"
        made.add_row(str(job.number), *values, status, best, steps, seconds, job.run.name if job.run else "")
    return made
