"""Check the jobs of a sweep, run them side by side, and open and lock its folder."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from drl_cli.errors import CHECKPOINT, UsageError
from drl_cli.runs.run import RUN_LOCK
from drl_cli.runtime.config import Config
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import CommandLine, read_command
from drl_cli.settings.hydra_grammar import unquoted
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.launcher import Launcher, start_here
from drl_cli.sweeps.places import join, room
from drl_cli.sweeps.search import Search
from drl_cli.sweeps.sweep import Sweep
from drl_cli.sweeps.table import View
from drl_cli.utils.locks import lock

T = TypeVar("T")


def for_all(ours: Mapping[str, str]) -> list[str]:
    """The overrides of the sweep that every job's config is composed with."""
    return [f"{key}={value}" for key, value in ours.items() if key not in ("resume", "dry_run")]


def is_dry_run(ours: Mapping[str, str], said: str) -> bool:
    """Whether the checks are all that is wanted; then they are said to have passed."""
    is_dry = unquoted(ours.get("dry_run", "false")).lower() == "true"
    if is_dry:
        print(said)
    return is_dry


def opened(open_it: Callable[[Path], T], folder: Path) -> T:
    """A sweep or study from its folder; raises UsageError (exit 8) where its file is damaged."""
    try:
        return open_it(folder)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"resume: {folder} can't be read: {error}", CHECKPOINT) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Have a sweep's folder for this process; raises UsageError while another runs its jobs."""
    try:
        claim = lock(folder / RUN_LOCK)
    except BlockingIOError as error:
        raise UsageError(f"resume: the sweep {folder.name} is being run right now") from error
    with claim:
        yield


def check_jobs(sweep: Sweep, jobs: Sequence[Job], more: Sequence[str]) -> list[Config]:
    """The config of each job that can run now, as typed; raises UsageError with the problems of all, each said once.

    Of jobs that differ in nothing but the seed the first is tried. What a file that may still come would mend is a
    warning: the job will say so itself, and can be run again. A cluster is joined, and its nodes are asked.
    """
    from drl_cli.errors import users_errors
    from drl_cli.preflight.preflight import preflight
    from drl_cli.preflight.weights import with_weights
    from drl_cli.settings.build import build
    from drl_cli.settings.compose import mapping
    from drl_cli.settings.fill import fill

    file = read_command(sweep.flags).config_file
    configs: list[Config] = []
    problems: dict[str, list[int]] = {}
    tried: set[str] = set()
    codes: list[int] = []
    for job in jobs:
        try:
            check_command(CommandLine([], job.overrides, file, is_sweep=False))
            typed = build(mapping([*job.overrides, *more], file))
            config = fill(with_weights(typed))
            key = repr(config).replace(f"seed={config.seed}", "", 1)
            if key not in tried:
                with users_errors(config.outside_modules):
                    preflight(config)
            tried.add(key)
            configs.append(typed)
        except UsageError as error:
            if _wants_a_file(error):
                print(f"warning: job {job.number} will fail: {error}", file=sys.stderr)
                continue
            codes.append(error.exit_code)
            for problem in error.problems:
                problems.setdefault(problem, []).append(job.number)
    if problems:
        lines = [f"{problem}{_in_jobs(numbers, len(jobs))}" for problem, numbers in problems.items()]
        raise UsageError(lines, min(codes))
    if configs:
        join(configs, Path(configs[0].output_dir).absolute() if sweep.folder == Path() else sweep.folder)
    return configs


def _wants_a_file(error: BaseException | None) -> bool:
    """Whether a missing file is what it comes from."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return True
        error = error.__cause__
    return False


def _in_jobs(numbers: Sequence[int], count: int) -> str:
    if len(numbers) == count:
        return ""
    return f"   (job {', '.join(map(str, numbers[:5]))}{', ...' if len(numbers) > 5 else ''} of {count})"


def run_jobs(
    sweep: Sweep,
    jobs: Sequence[Job],
    configs: Sequence[Config],
    search: Search | None = None,
    more: Callable[[], Sequence[Job]] = list,
) -> None:
    """As many at once as there is room for, then what `more` gives; with a search the jobs of its next trials, too."""
    places, most, start = room(configs)
    if most > len(places):
        what = "the cluster" if start is not start_here else "this machine"
        print(f"sweep.jobs={most}: {what} holds {len(places)} at once; more would be slower, not faster")
    if search is None and jobs:
        at_once = min(len(places), len(jobs))
        print(f"{len(jobs)} of {len(sweep.jobs)} jobs to run, {at_once} at once  ->  {sweep.folder}", flush=True)
    expected = search.study.hpo.trials * search.study.hpo.seeds if search else 0
    view, launcher = View(sweep, sys.stdout, expected), Launcher(sweep, places, start)
    launcher.changed, launcher.tick = [view.changed], [view.tick]
    if search is not None:
        launcher.changed.append(search.ended)
        launcher.tick.append(search.look)
        search.stop = launcher.stop
    try:
        launcher.run(jobs, search.more if search else more)
    finally:
        view.close()
