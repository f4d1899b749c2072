"""drl-list runs and drl-list sweeps: filter and sort runs, and average over seeds."""

import fnmatch
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from drl_cli.cli.command import OUTPUT_DIR_HELP, help_text, option
from drl_cli.errors import UsageError
from drl_cli.runs.find import all_runs
from drl_cli.runs.groups import Group, compared, differing_keys, grouped, long_name, override_text
from drl_cli.runs.run import SWEEP_FILE, Run
from drl_cli.runs.table import NONE, number, table
from drl_cli.settings.options import parse
from drl_cli.settings.value_types import group_of
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.ranges import Count
from drl_cli.utils.spelling import did_you_mean

Sort = Literal["newest", "best", "final", "steps", "seconds"]

ORDER: dict[Sort, Callable[[Run], float]] = {
    "best": lambda run: _or_least(run.best),
    "final": lambda run: _or_least(run.final),
    "steps": lambda run: run.env_steps,
    "seconds": lambda run: run.wall_s,
}
SHOWN = ("env.name", "env.id", "algo.name", "mode")
"""Keys that a column shows already."""
EXAMPLES = (
    "drl-list runs env=CartPole status=done sort=best limit=20",
    "drl-list runs algo=sac,ppo algo.lr=3e-4 seeds=mean",
)


@dataclass(frozen=True)
class Options:
    """Options of drl-list runs. Every other key is a condition on the config of the runs."""

    sort: Sort = option("newest", "newest, best, final, steps or seconds; the most first")
    limit: Count = option(20, "lines")
    seeds: Literal["each", "mean"] = option("each", "mean: one line for runs of equal keys")
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


@dataclass(frozen=True)
class SweepOptions:
    """Options of drl-list sweeps."""

    limit: Count = option(20, "lines")
    output_dir: str = option("outputs", "where the sweeps' runs are")


def help_of(topic: str) -> str:
    """Return the help of `drl-list runs` or `drl-list sweeps`."""
    if topic == "sweeps":
        return help_text("drl-list sweeps", SweepOptions, "sweeps, newest first")
    about = "runs, newest first; only those with these values of any key"
    return help_text("drl-list runs", Options, about, EXAMPLES)


def run_lines(args: Sequence[str]) -> list[str]:
    """Return the table of runs. Raise UsageError for a wrong option or condition."""
    own = [arg for arg in args if arg.partition("=")[0] in group_of(Options).keys]
    options = parse(own, Options)
    found = filtered([Run(path) for path in reversed(all_runs(options.output_dir))], set(args) - set(own))
    if options.sort != "newest":
        found = sorted(found, key=ORDER[options.sort], reverse=True)
    return group_table(found, options) if options.seeds == "mean" else run_table(found, options.limit)


def run_table(runs: Sequence[Run], limit: int) -> list[str]:
    """Return a line per run, with the keys in which the runs differ."""
    shown = runs[:limit]
    if not shown:
        return []
    keys = [key for key in differing_keys([compared(run) for run in shown]) if key not in SHOWN]
    rows = [
        [
            *(run.id, _value(run, "env.name"), _value(run, "algo.name"), _value(run, "mode"), run.status),
            *(number(run.env_steps), number(run.wall_s)),
            *(number(run.best, ".1f"), number(run.final, ".1f")),
            *([override_text({key: run.config[key] for key in keys if key in run.config})] if keys else []),
        ]
        for run in shown
    ]
    head = ["run", "env", "algo", "mode", "status", "env steps", "seconds", "best", "final"]
    head += ["differs in"] if keys else []
    lines = [table(head, rows, sys.stdout, left=("run", "env", "algo", "mode", "status", "differs in"))]
    return [*lines, f"{len(runs) - limit} more: limit={len(runs)}"] if len(runs) > limit else lines


def group_table(runs: Sequence[Run], options: Options) -> list[str]:
    """Return a line per group of runs that differ only in their seed. Returns are means over the evaluated runs."""
    groups = sorted(grouped(runs), key=lambda group: runs.index(group.runs[0]))  # in the order of `runs`
    if options.sort != "newest":
        groups = sorted(groups, key=lambda group: _mean(map(ORDER[options.sort], group.runs)), reverse=True)
    if not groups:
        return []
    head = ("env", "runs of", "seeds", "done", "env steps", "seconds", "best", "final")
    lines = [table(head, [_group_row(group) for group in groups[: options.limit]], sys.stdout, left=("env", "runs of"))]
    return [*lines, f"{len(groups) - options.limit} more"] if len(groups) > options.limit else lines


def filtered(runs: Sequence[Run], conditions: Iterable[str]) -> list[Run]:
    """Return the runs that fulfil every `key=value[,value]`. Raise UsageError for a key that no run has."""
    found = list(runs)
    for condition in sorted(conditions):
        key, equals, values = condition.partition("=")
        if not equals:
            own = ", ".join(group_of(Options).keys)
            raise UsageError(f"'{condition}': say key=value, with a key of the runs or of {own}")
        if key != "status":
            known = {key for run in runs for key in run.config}
            if known and long_name(key) not in known:
                names = [*known, "env", "algo", "status", *group_of(Options).keys]
                raise UsageError(f"{key}: no run has this key.{did_you_mean(key, names)}")
        asked = values.split(",")
        found = [run for run in found if any(_fits(_of(run, key), one) for one in asked)]
    return found


def sweep_lines(args: Sequence[str]) -> list[str]:
    """Return a line per sweep, newest first: its jobs, its keys, and its best run. Raise UsageError."""
    options = parse(args, SweepOptions)
    sweeps = [Sweep.open(path.parent) for path in Path(options.output_dir, "multirun").glob(f"*/{SWEEP_FILE}")]
    if not sweeps:
        return []
    rows = [_sweep_row(sweep) for sweep in sorted(sweeps, key=lambda sweep: sweep.folder.name, reverse=True)]
    head = ("sweep", "env", "algo", "jobs", "done", "best", "best run", "over")
    lines = [table(head, rows[: options.limit], sys.stdout, left=("sweep", "env", "algo", "best run", "over"))]
    return [*lines, f"{len(rows) - options.limit} more"] if len(rows) > options.limit else lines


def _of(run: Run, key: str) -> Any:
    return run.status if key == "status" else run.config.get(long_name(key))


def _fits(value: Any, asked: str) -> bool:
    """Return whether a value matches a condition. A text matches its beginning or a glob."""
    if isinstance(value, str):
        return value.startswith(asked) or fnmatch.fnmatchcase(value, asked)
    try:
        typed = yaml.safe_load(asked)
        return bool(value == typed or (isinstance(value, int | float) and float(value) == float(typed)))
    except (yaml.YAMLError, ValueError, TypeError):
        return False


def _value(run: Run, key: str) -> str:
    return str(run.config.get(key, NONE))


def _group_row(group: Group) -> list[str]:
    runs = [run for run in group.runs if run.best is not None]
    return [
        *(group.env, group.label, str(len(group.runs)), str(sum(run.status == "done" for run in group.runs))),
        *(number(_mean(run.env_steps for run in group.runs)), number(_mean(run.wall_s for run in group.runs))),
        *(number(_mean(_or_least(run.best) for run in runs), ".1f"),),
        *(number(_mean(_or_least(run.final) for run in runs), ".1f"),),
    ]


def _sweep_row(sweep: Sweep) -> list[str]:
    runs = [Run(job.run) for job in sweep.jobs if job.run is not None]
    best = max(runs, key=ORDER["best"], default=None)
    keys = dict.fromkeys(key for job in sweep.jobs for key in job.differs)
    return [
        sweep.folder.name,
        *(", ".join(sorted({_value(run, key) for run in runs})) or NONE for key in ("env.name", "algo.name")),
        *(str(len(sweep.jobs)), str(sum(job.is_done for job in sweep.jobs))),
        *((number(best.best, ".1f"), best.id) if best is not None and best.best is not None else (NONE, NONE)),
        ", ".join(keys),
    ]


def _or_least(value: float | None) -> float:
    return float("-inf") if value is None else value


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else float("-inf")
