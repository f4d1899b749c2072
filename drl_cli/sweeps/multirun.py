"""`drl-train -m`: a new or resumed sweep over a grid of values, a search (hpo=tpe ...) or a population (hpo=pbt)."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from drl_cli.config.sections import SweepConfig
from drl_cli.errors import DONE, SWEEP, UsageError
from drl_cli.run_folder import SWEEP_FILE
from drl_cli.run_folder.saved_run import read_json
from drl_cli.settings.build import Key, judge, option_values
from drl_cli.settings.command_line import OVERRIDE, CommandLine
from drl_cli.settings.conf import SEARCH_PATH
from drl_cli.settings.space import jobs as grid_jobs
from drl_cli.settings.trust import consent
from drl_cli.settings.value_types import group_of
from drl_cli.sweeps.jobs import check_jobs, claim_sweep, is_dry_run, run_jobs
from drl_cli.sweeps.population import Population, new_population, resume_population
from drl_cli.sweeps.results import print_jobs, print_next
from drl_cli.sweeps.search import new_search, resume_search
from drl_cli.sweeps.study import Study
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.hydra_grammar import unquoted
from drl_cli.utils.shown import print

SWEEP_OPTIONS = ("resume", "dry_run", "trust", "sweep", "hpo")
"""Keys and groups that configure the whole sweep and are not passed to its jobs."""


def run_sweep(command: CommandLine) -> int:
    """Run the sweep and return the exit code. Raise UsageError with the problems of all jobs."""
    options, overrides = split_overrides(command.overrides)
    folders = [arg for arg in overrides if arg.lstrip("+").startswith(f"{SEARCH_PATH}=")]
    flags = [*(flag for flag in command.flags if flag not in ("-m", "--multirun")), *folders]
    overrides = [arg for arg in overrides if arg not in folders]
    typed_dirs = [arg.partition("=")[2] for arg in overrides if arg.startswith("output_dir=")]
    output_dir = unquoted(typed_dirs[0]) if typed_dirs else "outputs"
    if "resume" in options:
        return resume_sweep(find_sweep(unquoted(options["resume"]), output_dir), options, overrides)
    return new_sweep(Sweep(Path(), flags), output_dir, options, overrides)


def new_sweep(sweep: Sweep, output_dir: str, options: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Run a search or a population if `hpo` is set, otherwise all combinations of values. Return the exit code."""
    if (hpo := unquoted(options.get("hpo", "none"))) != "none":
        return (new_population if hpo == "pbt" else new_search)(sweep, output_dir, options, overrides)
    jobs = list(grid_jobs(overrides, max_jobs(options)))
    sweep.add(jobs)
    if len(sweep.jobs) == 1 < len(jobs):
        raise UsageError(f"-m: all {len(jobs)} jobs are the same, because a value is given twice")
    if len(sweep.jobs) == 1:
        raise UsageError("-m sweeps over several values, as in seed=0,1 or algo.lr=1e-4,1e-3; for one run leave -m out")
    configs = check_jobs(sweep, sweep.jobs, options)
    if is_dry_run(options, f"{len(sweep.jobs)} jobs; all checks passed"):
        return DONE
    sweep.make_folder(output_dir)
    with claim_sweep(sweep.folder):
        run_jobs(sweep, sweep.jobs, configs)
        return finish_sweep(sweep)


def resume_sweep(folder: Path, options: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Run the unfinished jobs of a sweep, and new jobs of the grid in `overrides`. Return the exit code."""
    new = [arg for arg in overrides if not arg.startswith("output_dir=")]
    with claim_sweep(folder):
        trust = options.get("trust", "").lower() == "true"
        for name in (SWEEP_FILE, Study.FILE, Population.FILE):
            content = read_json(folder / name)
            words = {key: content.get(key, []) for key in ("flags", "jobs", "fixed")}
            consent(folder / name, {"words": words}, trust=trust)
        sweep = Sweep.open(folder)
        check_places(sweep, trust)
        for file, resume, advice in (
            (Study.FILE, resume_search, "a search goes on with its own keys, and hpo.trials"),
            (Population.FILE, resume_population, "a population goes on with its own keys, and hpo.rounds"),
        ):
            if (folder / file).is_file():
                if new:
                    raise UsageError(f"resume: {advice}: leave {new[0]} out")
                return resume(sweep, options)
        if new:
            check_shared(sweep, new)
            sweep.add(grid_jobs(new, max_jobs(options)))
        jobs = [job for job in sweep.jobs if not job.is_done]
        configs = check_jobs(sweep, jobs, options)
        if is_dry_run(options, f"{len(jobs)} jobs; all checks passed"):
            return DONE
        sweep.save()  # some jobs may have ended after the sweep was killed
        if jobs:
            run_jobs(sweep, jobs, configs)
        return finish_sweep(sweep)


def check_places(sweep: Sweep, trust: bool) -> None:
    """Raise UsageError if the run of a job is not in the sweep's output_dir, unless the user agrees."""
    root = sweep.folder.parents[1]
    runs = [job.run for job in sweep.jobs if job.run is not None and not job.run.resolve().is_relative_to(root)]
    if runs and not trust:
        raise UsageError(
            f"resume: {sweep.folder} names the run {runs[0]}, which is not in {root}. If that is right, say trust=true"
        )


def check_shared(sweep: Sweep, new: Sequence[str]) -> None:
    """Raise UsageError if new jobs lack a key that all jobs of the sweep share, such as `env`."""
    typed = {"output_dir", *(arg.partition("=")[0] for arg in new)}
    shared = [arg for arg in sweep.jobs[0].overrides if all(arg in job.overrides for job in sweep.jobs)]
    if missing := [arg for arg in shared if arg.partition("=")[0] not in typed]:
        line = f"resume: all jobs of this sweep have {shlex.join(missing)}; new jobs need these words, too"
        raise UsageError(f"{line}, or leave {new[0]} out")


def split_overrides(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split the overrides into the options of the sweep, by key, and the overrides of its jobs."""
    options, others = {}, []
    for arg in overrides:
        match = OVERRIDE.fullmatch(arg)
        if match and match["key"].partition(".")[0] in SWEEP_OPTIONS:
            options[match["key"]] = match["value"] or ""
        else:
            others.append(arg)
    return options, others


def max_jobs(options: Mapping[str, str]) -> int:
    """Return `sweep.max_jobs`: the typed value, or the default value in the yaml. Raise UsageError."""
    typed = {key.removeprefix("sweep."): yaml.safe_load(value) for key, value in options.items() if "sweep." in key}
    sweep: SweepConfig = judge(Key("sweep", group_of(SweepConfig)), {**option_values("sweep", "default"), **typed})
    return sweep.max_jobs


def find_sweep(name: str, output_dir: str) -> Path:
    """Return the sweep at the path `name`, or else the newest whose folder name begins with `name` (or `latest`)."""
    if (Path(name) / SWEEP_FILE).is_file():
        return Path(name).resolve()
    sweeps = sorted(path.parent for path in (Path(output_dir) / "multirun").glob(f"*/{SWEEP_FILE}"))
    matches = [path for path in sweeps if name == "latest" or path.name.startswith(name)]
    if not matches:
        there = f"; there is: {', '.join(path.name for path in sweeps[-5:])}" if sweeps else ""
        raise UsageError(f"resume: no sweep '{name}' in {Path(output_dir).absolute() / 'multirun'}{there}")
    return matches[-1].resolve()


def finish_sweep(sweep: Sweep) -> int:
    """Print the jobs by rank, the error of each unfinished job, and the next commands. Return the exit code."""
    unfinished = [job for job in sweep.jobs if not job.is_done]
    print_jobs(sweep)
    print(f"{len(sweep.jobs) - len(unfinished)} of {len(sweep.jobs)} jobs done; {sweep.folder / 'sweep.csv'}")
    if not unfinished:
        print_next(sweep)
        return DONE
    for job in unfinished:
        log = sweep.log(job)
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        reason = f": {errors[-1]}" if errors else f"; see {log}"
        print(f"error: job {job.number} {job.status}: {job.label}{reason}", file=sys.stderr)
    print(f"next: drl-train -m resume={shlex.quote(str(sweep.folder))}", file=sys.stderr)
    return SWEEP
