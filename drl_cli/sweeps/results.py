"""The results of a sweep: the ranking of its jobs, and the table of its results."""

import math
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from drl_cli.errors import DONE, SWEEP
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.end_text import next_lines
from drl_cli.runs.text_table import NONE, table
from drl_cli.runs.text_table import steps as position
from drl_cli.settings.conf import groups
from drl_cli.settings.space import Value, parse, typed
from drl_cli.sweeps.study import Trial, Trials
from drl_cli.sweeps.sweep import NO_RUN, Job, Sweep
from drl_cli.utils.files import write_csv
from drl_cli.utils.shown import print, relative_path, score_text

MOST_ROWS = 20

Row = Mapping[str, object]
"""A cell for each column, by the column's name."""


def by_return(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs in the order of their best returns, the highest first. Jobs without an evaluation are last."""
    return sorted(jobs, key=lambda job: _order(job.results()["best_return"]), reverse=True)


def print_jobs(sweep: Sweep) -> None:
    """Print a table of the jobs, the best first: returns, seed, swept keys, steps, status, and run."""
    rows = list[Row]()
    for job in by_return(sweep.jobs):
        results, run = job.results(), Run(job.run or NO_RUN)
        row = {name: score_text(results[f"{name}_return"]) for name in ("best", "final")}
        row |= {"seed": str(run.config.get("seed", NONE))}
        row |= {key: job.differs.get(key, NONE) for key in sweep.differing_keys}
        row |= {"steps": job.steps_text(), "status": job.status, "job": str(job.number)}
        rows.append({**row, "run": run.id if job.run else NONE})
    _print(rows, sweep.folder / "sweep.csv")
    _print_seeds(sweep)


def _print_seeds(sweep: Sweep) -> None:
    """Print a table with the mean and the sample standard deviation over the seeds of equal jobs.

    Without jobs that differ only in their seed, print nothing.
    A job without an evaluation is left out. The highest mean of the best returns comes first.
    """
    groups = _groups(sweep)
    if max((len(jobs) for _, jobs in groups), default=0) < 2:
        return
    rows = list[Row]()
    for values, jobs in groups:
        best, final = (
            _mean_and_spread([job.results()[f"{name}_return"] for job in jobs]) for name in ("best", "final")
        )
        rows.append({"best mean ± std": best, "final mean ± std": final, "seeds": str(len(jobs)), **values})
    _print(rows, sweep.folder / "sweep.csv")


def _groups(sweep: Sweep) -> list[tuple[dict[str, str], list[Job]]]:
    """Return the groups of jobs that differ only in their seed: the values of the swept keys, and the jobs.

    The highest mean of the best returns comes first. A job without an evaluation is left out.
    """
    keys = [key for key in sweep.differing_keys if key != "seed"]
    groups = defaultdict[tuple[str, ...], list[Job]](list)
    for job in sweep.jobs:
        if job.results()["best_return"] is not None:
            groups[tuple(job.differs.get(key, NONE) for key in keys)].append(job)
    found = [(dict(zip(keys, values, strict=True)), jobs) for values, jobs in groups.items()]
    return sorted(found, key=lambda group: _order(_mean_best(group[1])), reverse=True)


def _mean_best(jobs: Sequence[Job]) -> float:
    return fmean(job.results()["best_return"] for job in jobs)


def _mean_and_spread(returns: Sequence[float]) -> str:
    mean = score_text(fmean(returns))
    if len(returns) < 2:
        return f"{mean} ± {NONE}"
    spread, places = stdev(returns), len(mean.partition(".")[2])
    return f"{mean} ± {score_text(spread) if 'e' in mean else f'{spread:.{places}f}'}"


def print_values(name: str, rows: Iterable[tuple[float | None, Mapping[str, Value], Row]], file: Path) -> None:
    """Print a table of `(score, values, further cells)`, the highest score first. `name` is the name of the score."""
    found = list[Row]()
    for score, values, more in sorted(rows, key=lambda row: _order(row[0]), reverse=True):
        cells = dict(text.partition("=")[::2] for text in typed(values))
        found.append({name: score_text(score), **cells, **more})
    _print(found, file)


def print_next(sweep: Sweep) -> None:
    """Print the commands that evaluate the best run and compare all runs. Without an evaluation, print nothing.

    The best run is the best seed of the group with the highest mean, because a single seed of a worse group may be
    lucky. Returns of different environments can't be compared, so each environment has a best run.
    """
    groups, commands = _groups(sweep), list[str]()
    if not groups:
        return
    best_of = dict[str | None, tuple[dict[str, str], list[Job]]]()
    for values, jobs in groups:
        best_of.setdefault(values.get("env"), (values, jobs))
    for values, jobs in best_of.values():
        run = by_return(jobs)[0].run
        if run is not None and (run / "checkpoints" / "best").exists():
            commands.append(f"drl-eval run={relative_path(run)} episodes=100")
            if len(groups) > 1 and len(jobs) > 1:
                label = " ".join(f"{key}={value}" for key, value in values.items())
                mean = f"mean of the best returns {score_text(_mean_best(jobs))}, {len(jobs)} seeds"
                print(f"best group: {label} ({mean}); drl-eval takes its best seed")
    print("\n".join(next_lines([*commands, f"drl-compare {relative_path(sweep.folder)}"])))


def _print(rows: Sequence[Row], file: Path) -> None:
    """Print a numbered table of the first MOST_ROWS rows. If there are more rows, name the file that has them."""
    if rows:
        cells = [[str(rank), *map(str, row.values())] for rank, row in enumerate(rows[:MOST_ROWS], 1)]
        print(table(["rank", *rows[0]], cells, sys.stdout, left=("status", "run")))
    if len(rows) > MOST_ROWS:
        print(f"{len(rows) - MOST_ROWS} more: {file}")


def _order(score: float | None) -> float:
    return -math.inf if score is None or math.isnan(score) else score


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
    print(f"best: {' '.join(typed(best.values))}   objective {score_text(best.objective)}")
    scores = {name: trials.fresh_scores(trial) for name, trial in (("best", best), ("defaults", None))}
    for name, values in scores.items():
        if count := study.hpo.fresh_seeds:
            print(f"{name} on {count} fresh seeds: {_mean_text(values, count)}")
    is_better, text = verdict(scores["best"], scores["defaults"], study.hpo.fresh_seeds)
    print(f"verdict: {text}")
    for key, share in study.importances().items():
        print(f"importance of {key}: {share:.2f}")
    chosen = write_best(folder, typed(best.values))
    rows = [
        [i, *(trial.values[key] for key in study.space), trial.state, trial.objective, " ".join(map(str, trial.jobs))]
        for i, trial in enumerate(study.trials)
    ]
    write_csv(folder / "trials.csv", ["trial", *study.space, "state", "objective", "jobs"], rows)
    print("\n".join(next_lines(_commands(trials, best if is_better else None, chosen))))
    return DONE


def verdict(best: Sequence[float], defaults: Sequence[float], count: int) -> tuple[bool, str]:
    """Return whether to use the best trial's values, and a sentence.

    `best` and `defaults` are the scores of the finished runs on `count` fresh seeds. If one side finished fewer runs,
    the other side wins, otherwise the higher mean.
    """
    if len(best) != len(defaults):
        is_better, lost = len(best) > len(defaults), count - min(len(best), len(defaults))
        loser, advice = (
            ("the defaults", "use the best values") if is_better else ("the best values", "keep the defaults")
        )
        return is_better, f"{loser} did not finish on {lost} of {count} fresh seeds: {advice}"
    if not best:
        return True, "unknown: the best values were not compared with the defaults (hpo.fresh_seeds=3 compares them)"
    gain = statistics.mean(best) - statistics.mean(defaults)
    if gain <= 0:
        return False, f"the defaults are {'better' if gain else 'as good'} on fresh seeds: keep them"
    spread = (
        sum(statistics.variance(values) / len(values) for values in (best, defaults)) if len(best) > 1 else math.inf
    )
    more = f"-m resume=latest hpo.fresh_seeds={3 * count} tells more"
    doubt = f", but within the noise of {count} seeds; {more}" if gain <= 2 * math.sqrt(spread) else ""
    return True, f"the best values are better than the defaults by {score_text(gain)} on fresh seeds{doubt}"


def _commands(trials: Trials, winner: Trial | None, chosen: Sequence[str]) -> list[str]:
    """Return the commands that train with the values of `winner` (None: the defaults) and evaluate its best seed.

    `chosen` are the values that the file of the best values does not contain.
    """
    sweep, fixed = trials.sweep, trials.study.fixed
    commands = [shlex.join(["drl-train", *sweep.flags, *fixed, *(typed(winner.values) if winner else ())])]
    own = [sweep.jobs[job - 1] for job in winner.jobs] if winner else []
    run = by_return([*trials.fresh_jobs(winner), *own])[0].run
    if run is not None and (run / "checkpoints" / "best").exists():
        commands.append(f"drl-eval run={relative_path(run)} episodes=100")
    if winner and not any(flag in ("--config-dir", "-cd") for flag in sweep.flags):
        words = shlex.join([*sweep.flags, *fixed, *chosen])
        commands.append(f"drl-train --config-dir {relative_path(sweep.folder)} {words} experiment=best")
    return commands


def print_trials(trials: Trials) -> None:
    """Print a table of the trials, the best first: objective, values, seeds, steps, state, trial and jobs."""
    rows = []
    for i, trial in enumerate(trials.study.trials):
        jobs = [trials.sweep.jobs[job - 1] for job in trial.jobs]
        runs = [Run(job.run) for job in jobs if job.run is not None]
        steps = position(sum(run.position for run in runs) or None, runs[0].unit if runs else "env_steps")
        seeds = ",".join(override[5:] for job in jobs for override in job.overrides if override.startswith("seed="))
        more = {"seed": seeds, "steps": steps, "status": trial.state, "trial": i}
        rows.append((trial.objective, trial.values, {**more, "job": ",".join(map(str, trial.jobs))}))
    print_values("objective", rows, trials.study.folder / "trials.csv")


def _mean_text(values: Sequence[float], count: int) -> str:
    if not values:
        return "none was done"
    spread = f" +- {score_text(statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{score_text(statistics.mean(values))}{spread}" + ("" if len(values) == count else f" ({len(values)} done)")


def write_best(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Write the overrides to experiment/best.yaml in `folder`, for `--config-dir FOLDER experiment=best`.

    Return the overrides that choose an option of a group. In the file, they are a comment.
    """
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
    path = folder / "experiment" / "best.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# @package _global_\n{note}{yaml.safe_dump(tree, sort_keys=False)}")
    return chosen
