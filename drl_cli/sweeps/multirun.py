"""`drl-train -m`: all jobs are composed and checked, then run side by side; `-m resume=SWEEP` runs those not done."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from drl_cli.errors import DONE, SWEEP, UsageError
from drl_cli.runs.run import SWEEP_FILE
from drl_cli.settings.command_line import OVERRIDE, CommandLine
from drl_cli.settings.conf import SEARCH_PATH
from drl_cli.settings.hydra_grammar import unquoted
from drl_cli.settings.space import jobs as grid
from drl_cli.sweeps.hpo import new_search, resumed_search
from drl_cli.sweeps.jobs import alone, check_jobs, for_all, is_dry_run, opened, run_jobs
from drl_cli.sweeps.pbt import new_population, resumed_population
from drl_cli.sweeps.population import FILE as POPULATION
from drl_cli.sweeps.study import FILE as STUDY
from drl_cli.sweeps.sweep import Sweep

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
    if (Path(name) / SWEEP_FILE).is_file():
        return Path(name).resolve()
    found = sorted(path.parent for path in (Path(output_dir) / "multirun").glob(f"*/{SWEEP_FILE}"))
    meant = [path for path in found if name == "latest" or path.name.startswith(name)]
    if not meant:
        there = f"; there is: {', '.join(path.name for path in found[-5:])}" if found else ""
        raise UsageError(f"resume: no sweep '{name}' in {Path(output_dir).absolute() / 'multirun'}{there}")
    return meant[-1].resolve()


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
