"""Check all jobs of a sweep before the first one starts, lock its folder, run the jobs, and show them."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from drl_cli.config.config import Config
from drl_cli.errors import UsageError, users_errors
from drl_cli.run_folder import RUN_LOCK
from drl_cli.runs.data_env import with_data_env
from drl_cli.runs.named import with_config_of_run
from drl_cli.runs.text_table import NONE, number, table
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.sweeps.launcher import Launcher, check_cluster, job_slots, start_here
from drl_cli.sweeps.results import print_jobs
from drl_cli.sweeps.study import Trials
from drl_cli.sweeps.sweep import Job, Sweep
from drl_cli.utils.clock import now
from drl_cli.utils.files import lock
from drl_cli.utils.hydra_grammar import unquoted
from drl_cli.utils.shown import cell, print, score_text

if TYPE_CHECKING:
    from rich.text import Text

REFRESH_S = 2.0


class SweepView:
    """Show a sweep on `stream`. If jobs will be added, `count` is the expected number of all jobs."""

    def __init__(self, sweep: Sweep, stream: TextIO, count: int = 0) -> None:
        self.sweep, self.stream, self.count, self._next_s = sweep, stream, count, 0.0
        self.live: Any = None  # rich's Live, only on a terminal
        if stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(drawn(sweep, stream), console=Console(file=stream), auto_refresh=False)
            self.live.start()

    def changed(self, job: Job) -> None:
        if self.live is None:
            print(line(job, max(self.count, len(self.sweep.jobs))), file=self.stream, flush=True)
        self._next_s = 0.0

    def tick(self) -> None:
        """Draw the table again after a change, and every two seconds."""
        if self.live is not None and now() >= self._next_s:
            self._next_s = now() + REFRESH_S
            self.live.update(drawn(self.sweep, self.stream), refresh=True)

    def close(self) -> None:
        """Draw the table for the last time, and leave it on the terminal."""
        if self.live is not None:
            self.live.update(drawn(self.sweep, self.stream), refresh=True)
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


def drawn(sweep: Sweep, stream: TextIO) -> "Text":
    """Return a table with a row for each job, as the tables of results are drawn."""
    from rich.text import Text

    keys = sweep.differing_keys
    title = f"{cell(sweep.folder.name)}  {sum(job.is_done for job in sweep.jobs)} of {len(sweep.jobs)} done"
    rows = [
        [
            str(job.number),
            *(job.differs.get(key, "") for key in keys),
            job.status,
            *cells(job),
            job.run.name if job.run else "",
        ]
        for job in sweep.jobs
    ]
    head = ["job", *keys, "status", "best", "steps", "seconds", "run"]
    return Text(f"{title}\n{table(head, rows, stream, left=(*keys, 'status', 'run'))}")


def is_dry_run(options: Mapping[str, str], text: str) -> bool:
    """Return whether `dry_run` is true. If so, print `text`."""
    is_dry = unquoted(options.get("dry_run", "false")).lower() == "true"
    if is_dry:
        print(text)
    return is_dry


def claim_sweep(folder: Path) -> TextIO:
    """Lock the sweep's folder for this process. Raise UsageError if another process runs the sweep."""
    try:
        return lock(folder / RUN_LOCK)
    except BlockingIOError as error:
        raise UsageError(f"resume: the sweep {folder.name} is being run right now") from error


def check_jobs(sweep: Sweep, jobs: Sequence[Job], options: Mapping[str, str]) -> list[Config]:
    """Return the typed config of each job that can run. Raise UsageError with the problems of all jobs, each once.

    Add the sweep's `options` to each job. If jobs differ only in the seed, check only one of them. Only warn about a
    missing file, because the file may exist when the job starts or when the sweep is resumed.
    """
    from drl_cli.preflight.preflight import preflight_with_data
    from drl_cli.run_folder.load_weights import find_weights, with_weights
    from drl_cli.settings.build import build
    from drl_cli.settings.compose import mapping
    from drl_cli.settings.fill import fill, with_short_warm_up

    more = [f"{key}={value}" for key, value in options.items() if key not in ("resume", "dry_run")]
    searches = [word for word in more if word.startswith("hpo.") and "resume" not in options]  # was judged before
    configs: list[Config] = []
    problems: dict[str, list[int]] = {}
    changes: dict[str, list[int]] = {}
    find = cache(find_weights)  # prints its notes once for all jobs
    tried: set[str] = set()
    codes: list[int] = []
    for job in jobs:
        try:
            command = read_command([*sweep.flags, *job.overrides])
            command, _ = with_data_env(with_config_of_run(command))
            check_command(command)
            typed = build(mapping([*command.overrides, *more], command.config_file))
            config, lines = with_short_warm_up(fill(with_weights(typed, job.overrides, find)), job.overrides)
            for line in lines:
                changes.setdefault(line, []).append(job.number)
            key = repr(config).replace(f"seed={config.seed}", "", 1)
            if key not in tried:
                with users_errors(config.outside_modules):
                    preflight_with_data(config, [*job.overrides, *searches])
            tried.add(key)
            configs.append(typed)
        except UsageError as error:
            if _lacks_file(error):
                print(f"warning: job {job.number} will fail: {error}", file=sys.stderr)
                continue
            codes.append(error.exit_code)
            for problem in error.problems:
                problems.setdefault(problem, []).append(job.number)
    if problems:
        lines = [f"{problem}{_in_jobs(numbers, len(jobs))}" for problem, numbers in problems.items()]
        raise UsageError(lines, min(codes))
    for line, numbers in changes.items():
        print(f"{line}{_in_jobs(numbers, len(jobs))}")
    if configs:
        check_cluster(configs, Path(configs[0].output_dir).absolute() if sweep.folder == Path() else sweep.folder)
    return configs


def _lacks_file(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, FileNotFoundError) or _lacks_file(error.__cause__))


def _in_jobs(numbers: Sequence[int], count: int) -> str:
    if len(numbers) == count:
        return ""
    return f"   (job {', '.join(map(str, numbers[:5]))}{', ...' if len(numbers) > 5 else ''} of {count})"


def run_jobs(
    sweep: Sweep,
    jobs: Sequence[Job],
    configs: Sequence[Config],
    more: Callable[[], Sequence[Job]] = list,
    trials: Trials | None = None,
) -> None:
    """Run the jobs in parallel, one per slot. Then run the jobs that `more` returns, until `more` returns none."""
    slots, asked, start = job_slots(configs)
    at_once = len(slots)
    if asked > at_once:
        place = "the cluster" if start is not start_here else "this machine"
        print(f"sweep.jobs={asked}: {place} holds {at_once} at once; more would be slower, not faster")
    if trials is None and jobs:
        count = f"{len(jobs)} of {len(sweep.jobs)} jobs to run, {min(at_once, len(jobs))} at once"
        print(f"{count}  ->  {sweep.folder}", flush=True)
    view = SweepView(sweep, sys.stdout, trials.num_jobs if trials else 0)

    def changed(job: Job) -> None:
        view.changed(job)
        if trials:
            trials.changed(job)

    def tick() -> Iterable[Job]:
        view.tick()
        return trials.tick() if trials else ()

    try:
        Launcher(sweep, slots, start, changed, tick).run(jobs, more)
    except SystemExit:  # a signal; all jobs have ended
        view.close()
        print_jobs(sweep)
        print(f"{sum(job.is_done for job in sweep.jobs)} of {len(sweep.jobs)} jobs done")
        print(f"next: drl-train -m resume={shlex.quote(str(sweep.folder))}", file=sys.stderr)
        raise
    finally:
        view.close()
