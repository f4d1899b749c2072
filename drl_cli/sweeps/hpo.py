"""`drl-train -m hpo=...`: trials that Optuna proposes, then the best beside the defaults on fresh seeds."""

import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drl_cli.errors import DONE, MISSING, SWEEP, USER_CODE, UsageError
from drl_cli.runtime.config import Config
from drl_cli.settings.conf import groups
from drl_cli.settings.space import Choice, Space, corners, parse, typed
from drl_cli.settings.space import space as space_of
from drl_cli.sweeps.job import Job
from drl_cli.sweeps.jobs import alone, check_jobs, for_all, is_dry_run, opened, run_jobs
from drl_cli.sweeps.search import Search
from drl_cli.sweeps.study import Study
from drl_cli.sweeps.sweep import Sweep, whole

OF_SEARCH = ("trials", "seeds", "pruner", "fresh_seeds")
OF_POPULATION = ("members", "rounds", "quantile", "resample")
"""Keys of the group hpo that the other does not have."""


def is_search(overrides: Sequence[str]) -> bool:
    """Whether a command line asks for one."""
    return any(arg.startswith("hpo=") and arg != "hpo=none" for arg in overrides)


def new_search(sweep: Sweep, output_dir: str, ours: Mapping[str, str], rest: Sequence[str]) -> int:
    """Check the corners of the space, then search; returns the exit code. Raises UsageError."""
    need_optuna()
    refuse_keys(ours, OF_POPULATION, "is of hpo=pbt, not of a search")
    fixed, space = space_of(rest)
    if not space:
        raise UsageError("hpo: nothing to search: say for example 'algo.lr=tag(log,interval(1e-4,3e-3))'")
    if "seed" in space:
        raise UsageError("seed: a search has seeds of its own: hpo.seeds=3 runs each trial with three")
    configs = check_corners(sweep, fixed, space, ours)
    config = configs[0]
    hpo = config.hpo
    if hpo.sampler == "cma" and all(isinstance(domain, Choice) for domain in space.values()):
        raise UsageError("hpo=cma searches numbers, and there are only choices: say hpo=tpe")
    if is_dry_run(ours, f"{hpo.trials} trials over {', '.join(space)}; all checks passed at {len(configs)} points"):
        return DONE
    sweep.make_folder(output_dir)
    with alone(sweep.folder):
        fixed = [arg for arg in fixed if not arg.startswith("seed=")]
        study = Study(sweep.folder, space, fixed, hpo, config.seed)
        study.save()
        return search(sweep, study, configs)


def resumed_search(sweep: Sweep, ours: Mapping[str, str]) -> int:
    """Go on with the study in this folder, to another number of trials where that is said; returns the exit code."""
    need_optuna()
    refuse_keys(ours, OF_POPULATION, "is of hpo=pbt, not of a search")
    study = opened(Study.open, sweep.folder)
    configs = check_corners(sweep, study.fixed, study.space, ours)
    config = configs[0]
    if "hpo.trials" in ours:
        study.hpo = replace(study.hpo, trials=config.hpo.trials)
    if is_dry_run(ours, f"{len(study.trials)} of {study.hpo.trials} trials begun; all checks passed"):
        return DONE
    return search(sweep, study, configs)


def check_corners(sweep: Sweep, fixed: Sequence[str], space: Space, ours: Mapping[str, str]) -> list[Config]:
    """The configs at the corners of the space; raises UsageError where one is wrong, or none can run now."""
    points = [Job(number, [*fixed, *point], {}) for number, point in enumerate(corners(space), 1)]
    configs = check_jobs(sweep, points, for_all(ours))
    if not configs:
        raise UsageError("hpo: no trial can run as long as that file is missing", USER_CODE)
    return configs


def refuse_keys(ours: Mapping[str, str], names: Sequence[str], why: str) -> None:
    """Raise UsageError where one of these keys of the group hpo is given, or the name of another option of it."""
    problems = [f"hpo.{name}: {why}" for name in names if f"hpo.{name}" in ours]
    if "hpo.sampler" in ours:
        problems.append(f"hpo.sampler: say hpo={ours['hpo.sampler']}")
    if problems:
        raise UsageError(problems)


def need_optuna() -> None:
    """Raise UsageError (exit 3) where it is not installed."""
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise UsageError("hpo needs Optuna:  pip install 'drl-cli[hpo]'", MISSING)


def search(sweep: Sweep, study: Study, configs: Sequence[Config]) -> int:
    """All trials that are left, the runs on fresh seeds, and what comes of it."""
    made = Search(sweep, study, configs[0].manage.eval_period)
    print(f"search by {study.hpo.sampler}: {len(study.trials)} of {study.hpo.trials} trials begun  ->  {sweep.folder}")
    run_jobs(sweep, made.left(), configs, made)
    best = study.best
    if best is not None:
        fresh = [job for trial in (best, None) for job in made.fresh(trial)]
        sweep.save()
        run_jobs(sweep, [job for job in fresh if not job.is_done], configs)
    return close(made)


def close(made: Search) -> int:
    """Say and write what was found; the exit code: 0 when all trials have ended and one of them was done."""
    study, folder = made.study, made.study.folder
    counts = {state: sum(trial.state == state for trial in study.trials) for state in ("done", "pruned", "failed")}
    print(f"{len(study.trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    running = [trial for trial in study.trials if trial.state == "running"]
    best = study.best
    if best is None or running:
        print(
            f"error: {len(running)} trials have not ended" if running else "error: no trial was done", file=sys.stderr
        )
        print(f"next: drl-train -m resume={shlex.quote(str(folder))}", file=sys.stderr)
        return SWEEP
    print(f"best: {' '.join(typed(best.values))}   objective {best.objective:.1f}")
    lines = {"best": _fresh(made, made.fresh(best)), "defaults": _fresh(made, made.fresh(None))}
    for name, line in lines.items():
        if study.hpo.fresh_seeds:
            print(f"{name} on {study.hpo.fresh_seeds} fresh seeds: {line}")
    for key, share in study.importances().items():
        print(f"importance of {key}: {share:.2f}")
    write_best(folder / "best_overrides.yaml", typed(best.values))
    write_trials(study, folder / "trials.csv")
    draw(study, folder / "search.png")
    print(f"next: drl-train {' '.join(map(shlex.quote, [*study.fixed, *typed(best.values)]))}")
    print(f"      or copy {folder / 'best_overrides.yaml'} to conf/tuned/<name>.yaml and say tuned=<name>")
    return DONE


def _fresh(made: Search, jobs: Sequence[Job]) -> str:
    values = [value for job in jobs if (value := made.objective(job)) is not None]
    if not values:
        return "none was done"
    spread = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" + ("" if len(values) == len(jobs) else f" ({len(values)} done)")


def write_best(path: Path, overrides: Sequence[str]) -> None:
    """The values in the format of conf/tuned."""
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
    with whole(path) as draft:
        notes = [f"# and on the command line: {' '.join(chosen)}\n"] if chosen else []
        draft.write_text("".join(["# @package _global_\n", *notes, yaml.safe_dump(tree, sort_keys=False)]))


def write_trials(study: Study, path: Path) -> None:
    """A row for each trial."""
    import csv

    with whole(path) as draft, draft.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", *study.space, "state", "objective", "jobs"])
        for number, trial in enumerate(study.trials):
            jobs = " ".join(map(str, trial.jobs))
            writer.writerow([number, *(trial.values[key] for key in study.space), trial.state, trial.objective, jobs])


def draw(study: Study, path: Path) -> None:
    """The history and the importances, where matplotlib is installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    history, shares = figure.subplots(1, 2)
    done = [(i, t.objective) for i, t in enumerate(study.trials) if t.state == "done" and t.objective is not None]
    numbers, values = [i for i, _ in done], [value for _, value in done]
    history.plot(numbers, values, "o", ms=4, label="objective")
    history.step(numbers, [max(values[: i + 1]) for i in range(len(values))], where="post", label="best so far")
    history.set(xlabel="trial", ylabel="return")
    history.legend()
    found: Mapping[str, float] = study.importances()
    shares.barh(list(found), list(found.values()))
    shares.set(xlabel="importance", xlim=(0, 1))
    FigureCanvasAgg(figure).print_figure(path, dpi=120)
