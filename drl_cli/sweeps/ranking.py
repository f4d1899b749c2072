"""Print the ranked tables and the next commands at the end of a sweep, a search or a population."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from drl_cli.runs.end_text import next_lines, relative_path
from drl_cli.runs.run import Run
from drl_cli.runs.table import NONE, table
from drl_cli.settings.space import Value, typed
from drl_cli.sweeps.job import NO_RUN, Job
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.shown import print, score_text

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
