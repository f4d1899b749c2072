"""`drl-train -m hpo=tpe ...`: run the trials that Optuna proposes, then the best and default values on new seeds."""

import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drl_cli.errors import DONE, MISSING, SWEEP, USER_CODE, UsageError
from drl_cli.runs.end_text import relative_path
from drl_cli.runs.table import number
from drl_cli.runtime.config import Config
from drl_cli.settings.conf import groups
from drl_cli.settings.space import Choice, Space, corners, parse, typed
from drl_cli.settings.space import space as read_space
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.jobs import check_jobs, claim_sweep, is_dry_run, run_jobs
from drl_cli.sweeps.ranking import by_return, print_values
from drl_cli.sweeps.study import Study, Trials
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.files import write_csv
from drl_cli.utils.outside import source_file
from drl_cli.utils.shown import print

SEARCH_KEYS = ("trials", "seeds", "pruner", "fresh_seeds")
POPULATION_KEYS = ("members", "rounds", "quantile", "resample")
"""Keys of the group `hpo`: SEARCH_KEYS are only for a search, POPULATION_KEYS only for a population."""


def is_search(overrides: Sequence[str]) -> bool:
    """Return whether the overrides choose a search or a population."""
    return any(arg.startswith("hpo=") and arg != "hpo=none" for arg in overrides)


def new_search(sweep: Sweep, output_dir: str, options: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Check the corners of the search space, then search. Return the exit code. Raise UsageError if a check fails."""
    check_options(options)
    fixed, space = read_space(overrides)
    if not space:
        raise UsageError("hpo: nothing to search: say for example 'algo.lr=tag(log,interval(1e-4,3e-3))'")
    if "seed" in space:
        raise UsageError("seed: a search sets the seeds: hpo.seeds=3 runs each trial with three")
    configs = check_corners(sweep, fixed, space, options)
    config, hpo = configs[0], configs[0].hpo
    if hpo.sampler == "cma" and all(isinstance(domain, Choice) for domain in space.values()):
        raise UsageError("hpo=cma searches numbers, and there are only choices: say hpo=tpe")
    if is_dry_run(options, f"{hpo.trials} trials over {', '.join(space)}; all checks passed at {len(configs)} points"):
        return DONE
    sweep.make_folder(output_dir)
    with claim_sweep(sweep.folder):
        fixed = [arg for arg in fixed if not arg.startswith("seed=")]
        study = Study(sweep.folder, space, fixed, hpo, config.seed)
        study.save()
        return search(sweep, study, configs)


def resume_search(sweep: Sweep, options: Mapping[str, str]) -> int:
    """Resume the search in the sweep's folder, with a new number of trials if `hpo.trials` is set."""
    check_options(options)
    study = Study.open(sweep.folder)
    configs = check_corners(sweep, study.fixed, study.space, options)
    if "hpo.trials" in options:
        study.hpo = replace(study.hpo, trials=configs[0].hpo.trials)
    if is_dry_run(options, f"{len(study.trials)} of {study.hpo.trials} trials begun; all checks passed"):
        return DONE
    return search(sweep, study, configs)


def check_options(options: Mapping[str, str]) -> None:
    """Raise UsageError if Optuna is not installed (exit 3), or if an option is only for a population."""
    if source_file("optuna") is None:
        raise UsageError("hpo needs Optuna:  pip install 'drl-cli[hpo]'", MISSING)
    refuse_keys(options, POPULATION_KEYS, "is of hpo=pbt, not of a search")


def refuse_keys(options: Mapping[str, str], names: Sequence[str], why: str) -> None:
    """Raise UsageError if `hpo.sampler` or one of the keys `hpo.<name>` is set."""
    problems = [f"hpo.{name}: {why}" for name in names if f"hpo.{name}" in options]
    if "hpo.sampler" in options:
        problems.append(f"hpo.sampler: say hpo={options['hpo.sampler']}")
    if problems:
        raise UsageError(problems)


def check_corners(sweep: Sweep, fixed: Sequence[str], space: Space, options: Mapping[str, str]) -> list[Config]:
    """Return the configs at the corners of the space. Raise UsageError if a config is wrong or no config can run."""
    points = [Job(number, [*fixed, *point], {}) for number, point in enumerate(corners(space), 1)]
    configs = check_jobs(sweep, points, options)
    if not configs:
        raise UsageError("hpo: no trial can run without that file", USER_CODE)
    return configs


def search(sweep: Sweep, study: Study, configs: Sequence[Config]) -> int:
    """Run the remaining trials, then the fresh seeds. Print and write the results. Return the exit code."""
    trials = Trials(sweep, study, configs[0].manage.eval_period)
    print(f"search by {study.hpo.sampler}: {len(study.trials)} of {study.hpo.trials} trials begun  ->  {sweep.folder}")
    run_jobs(sweep, trials.unfinished_jobs(), configs, trials.next_jobs, trials)
    if study.best is not None:
        fresh = [*trials.fresh_jobs(study.best), *trials.fresh_jobs(None)]
        sweep.save()
        run_jobs(sweep, [job for job in fresh if not job.is_done], configs)
    return finish_search(trials)


def finish_search(trials: Trials) -> int:
    """Print and write the results. Return the exit code: 0 if all trials have ended and at least one is done."""
    study, folder, best = trials.study, trials.study.folder, trials.study.best
    counts = {state: sum(trial.state == state for trial in study.trials) for state in ("done", "pruned", "failed")}
    print(f"{len(study.trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    running = [trial for trial in study.trials if trial.state == "running"]
    print_trials(trials)
    if best is None or running:
        problem = f"{len(running)} trials have not ended" if running else "no trial was done"
        more = "" if running else f" hpo.trials={2 * len(study.trials)}"  # trials that have failed do not run again
        print(f"error: {problem}\nnext: drl-train -m resume={shlex.quote(str(folder))}{more}", file=sys.stderr)
        return SWEEP
    print(f"best: {' '.join(typed(best.values))}   objective {best.objective:.1f}")
    for name, trial in (("best", best), ("defaults", None)):
        if jobs := trials.fresh_jobs(trial):
            values = [value for job in jobs if (value := trials.objective(job)) is not None]
            print(f"{name} on {len(jobs)} fresh seeds: {_mean_text(values, len(jobs))}")
    for key, share in study.importances().items():
        print(f"importance of {key}: {share:.2f}")
    write_best(folder / "best_overrides.yaml", typed(best.values))
    rows = [
        [i, *(trial.values[key] for key in study.space), trial.state, trial.objective, " ".join(map(str, trial.jobs))]
        for i, trial in enumerate(study.trials)
    ]
    write_csv(folder / "trials.csv", ["trial", *study.space, "state", "objective", "jobs"], rows)
    draw_search(study, folder / "search.png")
    print(f"next: drl-train {shlex.join([*trials.sweep.flags, *study.fixed, *typed(best.values)])}")
    run = by_return(trials.sweep.jobs[job - 1] for job in best.jobs)[0].run
    if run is not None and (run / "checkpoints" / "best").exists():
        print(f"      drl-eval run={relative_path(run)} episodes=100")
    print(f"      or copy {folder / 'best_overrides.yaml'} to conf/tuned/<name>.yaml and say tuned=<name>")
    return DONE


def print_trials(trials: Trials) -> None:
    """Print a table of the trials, the best first: objective, values, seeds, steps, state, trial and jobs."""
    rows = []
    for i, trial in enumerate(trials.study.trials):
        jobs = [trials.sweep.jobs[job - 1] for job in trial.jobs]
        steps = number(sum(job.results()["env_steps"] or 0 for job in jobs) or None)
        seeds = ",".join(override[5:] for job in jobs for override in job.overrides if override.startswith("seed="))
        more = {"seed": seeds, "steps": steps, "status": trial.state, "trial": i}
        rows.append((trial.objective, trial.values, {**more, "job": ",".join(map(str, trial.jobs))}))
    print_values("objective", rows, trials.study.folder / "trials.csv")


def _mean_text(values: Sequence[float], count: int) -> str:
    if not values:
        return "none was done"
    spread = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" + ("" if len(values) == count else f" ({len(values)} done)")


def write_best(path: Path, overrides: Sequence[str]) -> None:
    """Write the overrides as a yaml file for conf/tuned. Overrides that choose an option of a group are a comment."""
    import yaml

    tree: dict[str, Any] = {}
    chosen: list[str] = []
    for key, value in parse(overrides):
        *parents, name = key.split(".")
        if not parents and name in groups():
            chosen.append(f"{name}={value}")
            continue
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    note = f"# and on the command line: {' '.join(chosen)}\n" if chosen else ""
    path.write_text(f"# @package _global_\n{note}{yaml.safe_dump(tree, sort_keys=False)}")


def draw_search(study: Study, path: Path) -> None:
    """If matplotlib is installed, draw the objective of each trial and the importance of each key."""
    if source_file("matplotlib") is None:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(search_figure(study)).print_figure(path, dpi=120)


def search_figure(study: Study) -> Any:  # Any: matplotlib is imported late
    """Return the figure: the objective of each trial and, if known, the importance of each key."""
    from matplotlib.figure import Figure

    importances = study.importances()
    figure = Figure(figsize=(9 if importances else 5, 3.5), layout="constrained")
    history, *others = figure.subplots(1, 2 if importances else 1, squeeze=False)[0]
    done = [(i, t.objective) for i, t in enumerate(study.trials) if t.state == "done" and t.objective is not None]
    numbers, values = [i for i, _ in done], [value for _, value in done]
    history.plot(numbers, values, "o", ms=4, label="objective")
    history.step(numbers, [max(values[: i + 1]) for i in range(len(values))], where="post", label="best so far")
    history.set(xlabel="trial", ylabel="return")
    history.legend()
    for shares in others:
        shares.barh(list(importances), list(importances.values()))
        shares.set(xlabel="importance", xlim=(0, 1))
    return figure
