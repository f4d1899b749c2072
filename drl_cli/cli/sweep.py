"""`drl-train -m`: all jobs are composed and checked, then run side by side; `-m resume=SWEEP` runs those not done."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from drl_cli.cli.check import check_command
from drl_cli.cli.command_line import OVERRIDE, CommandLine, read_command
from drl_cli.cli.conf import SEARCH_PATH
from drl_cli.cli.errors import CHECKPOINT, DONE, SWEEP, UsageError
from drl_cli.cli.grid import jobs as grid
from drl_cli.cli.hydra_grammar import unquoted
from drl_cli.cli.places import join, room
from drl_cli.results.run import RUN_LOCK
from drl_cli.runtime.config import Config
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.launcher import Launcher, start_here
from drl_cli.sweeps.population import FILE as POPULATION
from drl_cli.sweeps.search import Search
from drl_cli.sweeps.study import FILE as STUDY
from drl_cli.sweeps.sweep import FILE, Sweep
from drl_cli.sweeps.table import View
from drl_cli.utils.locks import lock

T = TypeVar("T")

OF_THE_SWEEP = ("resume", "dry_run", "sweep", "hpo")
"""Keys and groups that say what to do with all jobs, and are of none."""


def run_sweep(command: CommandLine) -> int:
    """The command with -m; returns the exit code. Raises UsageError with what is wrong with any job."""
    ours, rest = of_the_sweep(command.overrides)
    folders = [arg for arg in rest if arg.lstrip("+").startswith(f"{SEARCH_PATH}=")]
    flags = [*(flag for flag in command.flags if flag not in ("-m", "--multirun")), *folders]
    rest = [arg for arg in rest if arg not in folders]
    output_dir = unquoted(next((arg.partition("=")[2] for arg in rest if arg.startswith("output_dir=")), "outputs"))
    if "resume" in ours:
        return resume_sweep(find_sweep(unquoted(ours["resume"]), output_dir), ours, rest)
    return new_sweep(Sweep(Path(), flags), output_dir, ours, rest)


def new_sweep(sweep: Sweep, output_dir: str, ours: Mapping[str, str], rest: Sequence[str]) -> int:
    """All combinations of values, or a search among them, or a population."""
    from drl_cli.cli.population import new_population
    from drl_cli.cli.search import new_search

    if (hpo := unquoted(ours.get("hpo", "none"))) != "none":
        return (new_population if hpo == "pbt" else new_search)(sweep, output_dir, ours, rest)
    sweep.add(grid(rest))
    if len(sweep.jobs) == 1:
        raise UsageError("-m sweeps over several values, as in seed=0,1 or algo.lr=1e-4,1e-3; for one run leave -m out")
    configs = check_jobs(sweep, sweep.jobs, for_all(ours))
    if is_dry_run(ours, f"{len(sweep.jobs)} jobs; all checks passed"):
        return DONE
    sweep.make_folder(output_dir)
    with alone(sweep.folder):
        run_jobs(sweep, sweep.jobs, configs)
        return close(sweep)


def resume_sweep(folder: Path, ours: Mapping[str, str], rest: Sequence[str]) -> int:
    """What is left of a sweep, a search or a population, and the jobs of a grid that it does not have yet."""
    from drl_cli.cli.population import resumed_population
    from drl_cli.cli.search import resumed_search

    more = [arg for arg in rest if not arg.startswith("output_dir=")]
    with alone(folder):
        sweep = opened(Sweep.open, folder)
        for file, go_on, what in (
            (STUDY, resumed_search, "a search goes on with its own keys, and hpo.trials"),
            (POPULATION, resumed_population, "a population goes on with its own keys, and hpo.rounds"),
        ):
            if (folder / file).is_file():
                if more:
                    raise UsageError(f"resume: {what}: leave {more[0]} out")
                return go_on(sweep, ours)
        if more:
            sweep.add(grid(rest))
        jobs = [job for job in sweep.jobs if not job.is_done]
        configs = check_jobs(sweep, jobs, for_all(ours))
        if is_dry_run(ours, f"{len(jobs)} jobs; all checks passed"):
            return DONE
        sweep.save()  # where the sweep was killed, jobs may have ended after it
        if jobs:
            run_jobs(sweep, jobs, configs)
        return close(sweep)


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


def of_the_sweep(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What is of the sweep as a whole, by key, and the rest."""
    ours, rest = {}, []
    for arg in overrides:
        match = OVERRIDE.fullmatch(arg)
        if match and (match["key"] in OF_THE_SWEEP or match["key"].startswith(("sweep.", "hpo."))):
            ours[match["key"]] = match["value"] or ""
        else:
            rest.append(arg)
    return ours, rest


def find_sweep(name: str, output_dir: str) -> Path:
    """The newest sweep that is meant: a path, `latest`, or the start of its folder's name; raises UsageError."""
    if (Path(name) / FILE).is_file():
        return Path(name).resolve()
    found = sorted(path.parent for path in (Path(output_dir) / "multirun").glob(f"*/{FILE}"))
    meant = [path for path in found if name == "latest" or path.name.startswith(name)]
    if not meant:
        there = f"; there is: {', '.join(path.name for path in found[-5:])}" if found else ""
        raise UsageError(f"resume: no sweep '{name}' in {Path(output_dir).absolute() / 'multirun'}{there}")
    return meant[-1].resolve()


def check_jobs(sweep: Sweep, jobs: Sequence[Job], more: Sequence[str]) -> list[Config]:
    """The config of each job that can run now, as typed; raises UsageError with the problems of all, each said once.

    Of jobs that differ in nothing but the seed the first is tried. What a file that may still come would mend is a
    warning: the job will say so itself, and can be run again. A cluster is joined, and its nodes are asked.
    """
    from drl_cli.cli.compose import mapping
    from drl_cli.cli.errors import users_errors
    from drl_cli.cli.preflight import fill, preflight
    from drl_cli.cli.settings import build

    file = read_command(sweep.flags).config_file
    configs: list[Config] = []
    problems: dict[str, list[int]] = {}
    tried: set[str] = set()
    codes: list[int] = []
    for job in jobs:
        try:
            check_command(CommandLine([], job.overrides, file, is_sweep=False))
            typed = build(mapping([*job.overrides, *more], file))
            config = fill(typed)
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


def close(sweep: Sweep) -> int:
    """Say what is left to do; the exit code."""
    left = [job for job in sweep.jobs if not job.is_done]
    print(f"{len(sweep.jobs) - len(left)} of {len(sweep.jobs)} jobs done; {sweep.folder / 'sweep.csv'}")
    if not left:
        return DONE
    for job in left:
        differs = " ".join(f"{key}={value}" for key, value in job.differs.items())
        print(f"error: job {job.number} {job.status}: {differs}{_reason(sweep.log(job))}", file=sys.stderr)
    print(f"next: drl-train -m resume={shlex.quote(str(sweep.folder))}", file=sys.stderr)
    return SWEEP


def _reason(log: Path) -> str:
    """The last error that a job printed."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return f": {errors[-1]}" if errors else f"; see {log}"
