"""drl-list runs and drl-list sweeps: filter and sort runs, and average over seeds."""

import fnmatch
import math
import operator
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import algorithms
from drl_cli.cli.command import OUTPUT_DIR_HELP, option
from drl_cli.config.config import DESCRIBING
from drl_cli.errors import UsageError
from drl_cli.run_folder import SWEEP_FILE
from drl_cli.run_folder.edit import chosen, describe, remove
from drl_cli.run_folder.find import MAX_NAMED, all_runs
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.groups import SHORT, differences, grouped, key_hint, override_text, without_repeats
from drl_cli.runs.text_table import NONE, number, steps, table
from drl_cli.settings.algorithm import algorithm_options
from drl_cli.settings.build import as_typed, is_free, keys_of
from drl_cli.settings.options import other_word, parse, usage
from drl_cli.settings.value_types import group_of
from drl_cli.sweeps.sweep import Sweep
from drl_cli.utils.ranges import Count
from drl_cli.utils.shown import score_text

Sort = Literal["newest", "best", "final", "steps", "seconds"]

ORDER: dict[Sort, Callable[[Run], float]] = {
    "best": lambda run: -math.inf if run.best is None else run.best,
    "final": lambda run: -math.inf if run.final is None else run.final,
    "steps": lambda run: run.position,
    "seconds": lambda run: run.wall_s,
}
NUMBERS = {"best": "best", "final": "final", "steps": "position", "seconds": "wall_s", "score": "score"}
"""The numbers of a run, besides those of its config, that a condition such as `best>300` compares."""
SIGNS = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
COMPARED, EQUAL = re.compile(r"([\w.]+)(>=|<=|>|<)(.+)"), re.compile(r"[\w.]+=")
NAMES = {**SHORT, "tag": "tags"}
LEFT = ("run", "env", "algo", "mode", "status", "runs of", "sweep", "best run", "over", *DESCRIBING, "differs in")
"""Columns that are aligned left."""
EXAMPLES = (
    "drl-list runs env=CartPole status=done sort=best limit=20",
    "drl-list runs algo=sac,ppo algo.lr=3e-4 seeds=mean",
    "drl-list runs lander tag=paper 'best>200'     lander is a part of the id, env, algo, name, tags or notes",
    "drl-list runs 20260101 set_name=wide set_tags=[paper]",
    "drl-list runs remove=empty",
)


@dataclass(frozen=True)
class Options:
    """Options of drl-list runs. Every other key is a condition on the config of the runs."""

    sort: Sort = option("newest", "newest, best, final, steps or seconds; the most first")
    limit: Count = option(20, "lines")
    seeds: Literal["each", "mean"] = option("each", "mean: one line for runs of equal keys")
    remove: tuple[str, ...] = option((), "remove these of the listed runs (RUN,RUN), or `empty` and failed ones")
    yes: bool = option(False, "remove without a question")
    set_name: str | None = option(None, "give the listed runs this name")
    set_tags: tuple[str, ...] | None = option(None, "give the listed runs these tags, as in set_tags=[paper,wide]")
    set_notes: str | None = option(None, "give the listed runs this remark")
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


@dataclass(frozen=True)
class SweepOptions:
    """Options of drl-list sweeps."""

    limit: Count = option(20, "lines")
    output_dir: str = option("outputs", "where the sweeps' runs are")


def help_of(topic: str) -> str:
    """Return the help of `drl-list runs` or `drl-list sweeps`."""
    if topic == "sweeps":
        return usage("drl-list sweeps", SweepOptions, "sweeps, newest first")
    about = "runs, newest first; only those with these values of any key"
    return usage("drl-list runs", Options, about, EXAMPLES)


def run_lines(args: Sequence[str]) -> list[str]:
    """Return the table of runs. Raise UsageError for a wrong option or condition."""
    own = [arg for arg in args if arg.partition("=")[0] in group_of(Options).keys]
    options, conditions = parse(own, Options), set(args) - set(own)
    changed = {key for key in (arg.partition("=")[0] for arg in own) if key.startswith("set_")}
    runs = [Run(path) for path in reversed(all_runs(options.output_dir))]
    found = filtered(runs, conditions)
    given = {key: getattr(options, f"set_{key}") for key in DESCRIBING if f"set_{key}" in changed}
    if options.remove:
        return remove(chosen(found, options.remove, options.output_dir), options.yes)
    if given and not conditions:
        raise UsageError(f"{', '.join(sorted(changed))}: say which runs, by the start of an id or key=value")
    if not found:
        return [nothing(runs, conditions, options.output_dir)]
    if given:
        return describe(found, given)
    if options.sort != "newest":
        found = sorted(found, key=ORDER[options.sort], reverse=True)
    return group_table(found, options) if options.seeds == "mean" else run_table(found, options.limit)


def nothing(runs: Sequence[Run], conditions: Iterable[str], output_dir: str) -> str:
    """Return why a list is empty: there are no runs, or no run fulfils the conditions, with the values that exist."""
    if not runs:
        return f"no runs in {Path(output_dir).absolute()}"
    asked = sorted(conditions)
    parts = []
    for key in dict.fromkeys(condition.partition("=")[0] for condition in asked if EQUAL.match(condition)):
        counts = Counter(str(value_of(run, key)) for run in runs).most_common(MAX_NAMED)
        parts.append(f"{key} is {', '.join(f'{value} ({count})' for value, count in counts)}")
    return f"none of {len(runs)} runs has {' '.join(asked)}{'; ' * bool(parts)}{'; '.join(parts)}"


def run_table(runs: Sequence[Run], limit: int) -> list[str]:
    """Return a line per run, with the keys in which the runs differ by more than their algorithm."""
    listed = runs[:limit]
    differing = differences(listed)
    head = ["run", "env", "algo", "mode", "status", "env steps", "seconds", "best", "final"]
    scores = [score_text(run.score) for run in listed]
    has_scores = any(score != NONE for score in scores)
    head += ["score"] * has_scores
    described = [key for key in DESCRIBING if any(run.config.get(key) for run in listed)]
    head += [*described, *(["differs in"] if any(differing) else [])]
    rows = []
    for run, values, score in zip(listed, differing, scores, strict=True):
        row = [run.id, *(_value(run, key) for key in ("env.name", "algo.preset", "mode")), run.status]
        row += [steps(run.position, run.unit), number(run.wall_s), score_text(run.best), score_text(run.final)]
        row += [score] * has_scores
        row += [as_typed(value) if (value := run.config.get(key)) else NONE for key in described]
        rows.append([*row, override_text(values) or NONE] if any(differing) else row)
    return _table(head, rows, len(runs), f": limit={len(runs)}")


def group_table(runs: Sequence[Run], options: Options) -> list[str]:
    """Return a line per group of runs that differ only in their seed. Returns are means over the evaluated runs.

    Of several runs with the same seed, only the newest counts.
    """
    place = {run.folder: i for i, run in enumerate(runs)}
    groups = [replace(group, runs=without_repeats(group.runs)) for group in grouped(runs)]
    groups.sort(key=lambda group: place[group.runs[0].folder])  # ordered as `runs`
    if options.sort != "newest":
        groups = sorted(groups, key=lambda group: _mean(map(ORDER[options.sort], group.runs)), reverse=True)
    rows = []
    for group in groups[: options.limit]:
        num_done = sum(run.status == "done" for run in group.runs)
        position, seconds = (_mean(map(ORDER[name], group.runs)) for name in ("steps", "seconds"))
        evaluated = [run for run in group.runs if run.best is not None]
        best, final = (score_text(_mean(map(ORDER[name], evaluated))) for name in ("best", "final"))
        row = [group.env, group.label, str(len(group.runs)), str(num_done)]
        rows.append([*row, steps(position, group.runs[0].unit), number(seconds), best, final])
    head = ("env", "runs of", "seeds", "done", "env steps", "seconds", "best", "final")
    return _table(head, rows, len(groups))


def filtered(runs: Sequence[Run], conditions: Iterable[str]) -> list[Run]:
    """Return the runs that fulfil every condition: `key=value[,value]`, `key>number` or a text.

    Raise UsageError for a key that no run has or can have.
    """
    found = list(runs)
    for condition in sorted(conditions):
        if compared := COMPARED.fullmatch(condition):
            key, sign, bound = compared.groups()
            found = [run for run in found if _compares(run, key, sign, bound, runs)]
            continue
        key, equals, values = condition.partition("=")
        if not equals:
            found = [run for run in found if condition.casefold() in _text(run)]
            continue
        if line := _unknown(key, runs):
            raise UsageError(line)
        asked = (values.strip("[]") if key in ("tag", "tags") else values).split(",")
        found = [run for run in found if any(_matches(value_of(run, key), one) for one in asked)]
    return found


def _compares(run: Run, key: str, sign: str, text: str, runs: Sequence[Run]) -> bool:
    """Return whether a number of a run is above or below another number. A run without the number is not."""
    value = getattr(run, NUMBERS[key]) if key in NUMBERS else value_of(run, key)
    if key not in NUMBERS and (line := _unknown(key, runs)):
        raise UsageError(line)
    try:
        bound = float(text)
    except ValueError as error:
        raise UsageError(f"{key}{sign}{text}: {text!r} is no number") from error
    return isinstance(value, int | float) and SIGNS[sign](value, bound)


def _text(run: Run) -> str:
    """Return the words in which a text is looked for."""
    values = (run.config.get(key) for key in ("env.name", "algo.preset", "mode", *DESCRIBING))
    return " ".join(str(value) for value in (run.id, run.status, *values) if value).casefold()


def _unknown(key: str, runs: Sequence[Run]) -> str | None:
    """Return the error line for a key that no run has. Without runs, return it for a key that no run can have."""
    if runs:
        known = {*DESCRIBING, *(key for run in runs for key in run.config)}
    else:
        known = {
            *keys_of(AlgoConfig),
            *(f"algo.{option}" for name in algorithms() for option in algorithm_options(name)),
        }
        if key.startswith("algo.") or is_free(key, keys_of(AlgoConfig)):  # may be an option of the user's algorithm
            return None
    if key == "status" or NAMES.get(key, key) in known:
        return None
    options = group_of(Options).keys
    word = other_word(key, options)
    hint = f" Did you mean {word}?" if word else key_hint(key, known, ["env", "algo", "status", *options])
    return f"{key}: {'no run has this key' if runs else 'there is no such key'}.{hint}"


def sweep_lines(args: Sequence[str]) -> list[str]:
    """Return a line per sweep, newest first: its jobs, its keys, and its best run. Raise UsageError."""
    options = parse(args, SweepOptions)
    folders = sorted(path.parent for path in Path(options.output_dir, "multirun").glob(f"*/{SWEEP_FILE}"))
    if not folders:
        return [f"no sweeps in {Path(options.output_dir, 'multirun').absolute()}"]
    rows = []
    for sweep in map(Sweep.open, folders[::-1][: options.limit]):
        runs = [Run(job.run) for job in sweep.jobs if job.run is not None]
        best = max((run for run in runs if run.best is not None), key=ORDER["best"], default=None)
        env, algo = (", ".join(sorted({_value(run, key) for run in runs})) for key in ("env.name", "algo.preset"))
        num_done, keys = sum(job.is_done for job in sweep.jobs), (key for job in sweep.jobs for key in job.differs)
        row = [sweep.folder.name, env or NONE, algo or NONE, str(len(sweep.jobs)), str(num_done)]
        row += [score_text(best.best), best.id] if best else [NONE, NONE]
        rows.append([*row, ", ".join(dict.fromkeys(keys))])
    head = ("sweep", "env", "algo", "jobs", "done", "best", "best run", "over")
    return _table(head, rows, len(folders))


def value_of(run: Run, key: str) -> Any:
    """Return the run's status, or its value of a key, which may be a short name."""
    return run.status if key == "status" else run.config.get(NAMES.get(key, key))


def _matches(value: Any, asked: str) -> bool:
    """Return whether a value matches a condition: text by its beginning or by a glob, a list by one of its texts."""
    if isinstance(value, list):
        return any(isinstance(item, str) and _matches(item, asked) for item in value)
    if isinstance(value, str):
        return value.startswith(asked) or fnmatch.fnmatchcase(value, asked)
    try:
        typed = yaml.safe_load(asked)
        return bool(value == typed or (isinstance(value, int | float) and float(value) == float(typed)))
    except (yaml.YAMLError, ValueError, TypeError):
        return False


def _value(run: Run, key: str) -> str:
    return str(run.config.get(key, NONE))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], total: int, hint: str = "") -> list[str]:
    """Return the lines of a table, then a line with the number of rows left out. Without rows, return no table."""
    lines = [table(head, rows, sys.stdout, LEFT)] if rows else []
    return [*lines, f"{total - len(rows)} more{hint}"] if total > len(rows) else lines


def _mean(values: Iterable[float]) -> float:
    """Return the mean, or -inf if there are no values."""
    found = list(values)
    return statistics.fmean(found) if found else -math.inf
