"""drl-list TOPIC: list algorithms, environments, modes, keys, runs, sweeps or datasets. One function per topic."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from drl_cli.cli.command import OUTPUT_DIR_HELP, option, run_words
from drl_cli.errors import DONE, UsageError
from drl_cli.runs.data_env import all_datasets, dataset_path
from drl_cli.runs.text_table import NONE, number, table
from drl_cli.settings.conf import conf_dir, options
from drl_cli.settings.options import parse, usage
from drl_cli.types import Column, leaves
from drl_cli.utils.outside import look_in
from drl_cli.utils.shown import print, score_text
from drl_cli.utils.spelling import did_you_mean

COUNTS = ("steps", "episodes", "ended", "cut", "mean", "min", "max", "score", "covers")
HEAD = ("dataset", "env", *COUNTS, "observations", "actions")
LEFT = ("dataset", "env", "observations", "actions")
EXAMPLES = ("drl-list data", "drl-list data minari:D4RL/hopper/medium-v2", "drl-list data run:latest my.npz")
COLUMNS = """\
ended: episodes that terminated; cut: episodes that were truncated; mean, min, max: returns of whole episodes;
score: the mean return, 0 for a random policy and 100 for an expert, if both are known;
covers: the part of the action space that occurs"""


@dataclass(frozen=True)
class DataOptions:
    """Options of drl-list data."""

    datasets: tuple[str, ...] = option((), "paths, minari:ID, run:RUN; none: those below output_dir and Minari's")
    reference: tuple[float, ...] | None = option(None, "[random,expert]: the returns for normalised scores")
    download: bool = option(False, "let Minari download a missing dataset minari:ID")
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def data_lines(args: Sequence[str]) -> list[str]:
    """Return the table of datasets. Raise UsageError with the problems of all datasets that were named.

    Of datasets that were not named, the problems are lines after the table.
    """
    options = parse(args, DataOptions, positional="datasets")
    sources = options.datasets or all_datasets(options.output_dir)
    if not sources:
        return [f"no datasets in {Path(options.output_dir).absolute()}; drl-record run=RUN episodes=100 makes one"]
    rows, problems = [], list[str]()
    for source in sources:
        try:
            rows.append(_row(source, options))
        except UsageError as error:
            if len(options.datasets) == 1:
                raise
            problems += error.problems
    if options.datasets and problems:
        raise UsageError(problems)
    return [*([table(HEAD, rows, sys.stdout, LEFT)] if rows else []), *problems]


def _row(source: str, options: DataOptions) -> list[str]:
    from drl_cli.data.dataset import coverage, normalised
    from drl_cli.data.open import open_dataset

    path = dataset_path(source, options.output_dir)
    dataset = open_dataset(path, is_checked=True, download=options.download, reference=options.reference)
    facts, spec = dataset.facts, dataset.spec
    counts = map(number, (facts.steps, facts.episodes, facts.terminations, facts.truncations))
    returns, score = [NONE] * 3, NONE
    if len(found := facts.whole_returns):
        mean = float(found.mean())
        returns = [score_text(float(value)) for value in (mean, found.min(), found.max())]
        score = NONE if facts.reference is None else score_text(normalised(mean, facts.reference))
    covered = f"{coverage(dataset):.0%}"
    obs = ", ".join(f"{path} {_column_text(column)}".strip() for path, column in leaves(spec.obs).items())
    return [source, facts.env or NONE, *counts, *returns, score, covered, obs, spec.action.text]


def _column_text(column: Column) -> str:
    if column.choices:
        return f"Discrete({','.join(map(str, column.choices))})"
    return f"{column.dtype}({','.join(map(str, column.shape))})"


def main() -> None:
    """Run drl-list."""
    run_words(answer, help_of, needs_words=True)


def answer(words: Sequence[str]) -> int:
    """Print the list that the first word names."""
    topic, *args = words
    if flags := [word for word in words if word.startswith("-")]:
        raise UsageError(f"no flag '{flags[0]}': options have no dashes; say {flags[0].lstrip('-')}")
    if topic not in TOPICS:
        raise UsageError(f"no list '{topic}'.{did_you_mean(topic, TOPICS)}   lists: {', '.join(TOPICS)}")
    texts = [arg for arg in args if topic in ("envs", "modes") or (topic == "algos" and "=" not in arg)]
    if texts:
        search = f"; to search: drl-list {topic} | grep -i {texts[0].rpartition('=')[2]}"
        takes = "only env=NAME and mode=MODE" if topic == "algos" else "no options"
        raise UsageError(f"drl-list {topic} takes {takes}, got {' '.join(texts)}{search}")
    print("\n".join(TOPICS[topic](args)))
    return DONE


def help_of(words: Sequence[str]) -> str:
    """Return the help of drl-list, or the help of the topic `algos`, `runs`, `sweeps` or `data`."""
    if words and words[0] == "algos":
        return usage("drl-list algos", AlgoOptions, "algorithms", ("drl-list algos env=CartPole-v1",))
    if words and words[0] == "data":
        return f"{usage('drl-list data', DataOptions, 'datasets, each read once as a whole', EXAMPLES)}\n\n{COLUMNS}"
    if words and words[0] in ("runs", "sweeps"):
        from drl_cli.cli.list_runs import help_of

        return help_of(words[0])
    return f"drl-list {' | '.join(TOPICS)}   what there is, and what fits together"


@dataclass(frozen=True)
class AlgoOptions:
    """Options of drl-list algos."""

    env: str | None = option(None, "list only what can learn this environment, best recorded result first")
    mode: Literal["single", "sync", "async", "offline"] = option("async", "with env: only algorithms of this mode")


def algos(args: Sequence[str]) -> list[str]:
    """List algorithms with their action spaces and modes; with `env=NAME`, those that can learn the environment."""
    from drl_cli.algos.lookup import ACTIONS, NotAlgorithm, algorithms, installed, load_algorithm
    from drl_cli.runs.auto import FOR_IMAGES, UNTUNED
    from drl_cli.utils.outside import ModuleRaised, NotFound

    asked = parse(args, AlgoOptions)
    if asked.env is not None:
        from drl_cli.runs.auto import fitting

        look_in(os.getcwd())  # the user names the environment, which may be in a module there
        return fitting(asked.env, asked.mode)
    if args:
        raise UsageError(f"{' '.join(args)}: say for which environment: drl-list algos env=NAME {' '.join(args)}")
    lines = []
    for name in [*algorithms(), *installed()]:
        try:
            module = load_algorithm(name)
        except (NotFound, NotAlgorithm, ModuleRaised) as error:  # a broken installed algorithm must not end the list
            lines.append((name, f"can't be used here: {error}"))
            continue
        title = next(iter((module.__doc__ or "").splitlines()), "")
        lines.append((name, f"{'/'.join(module.ACTIONS)} actions; {', '.join(module.MODES)}; {title}"))
    variants = [name for name in options("algo") if name not in algorithms()]  # yaml files that change an algorithm
    lines += [(name, about("algo", name)) for name in variants]
    without = ", ".join(f"{name} for {ACTIONS[kind]} actions" for kind, name in UNTUNED.items())
    best = "the algorithm with the best recorded result for the environment"
    lines += [("auto", f"{best}; without a result, {without}, and {FOR_IMAGES} for images")]
    width = max(len(name) for name, _ in lines)
    return [f"{name:<{width}}  {text}" for name, text in lines]


def envs(args: Sequence[str]) -> list[str]:
    """List environments, those of conf/env first, with what to install and the algorithms that have tuned values."""
    from drl_cli.envs.catalog import entries, missing_package  # slow: imports gymnasium
    from drl_cli.settings.env_names import is_mujoco

    found = entries()
    needed_by = {entry.id: entry.missing for entry in found}
    ids = {name: yaml.safe_load((conf_dir() / "env" / f"{name}.yaml").read_text())["id"] for name in options("env")}
    for id in ids.values():
        if package := missing_package(id):
            needed_by[id] = package.install
    rows = [(name, needed_by.get(id), f"conf/env, {id}") for name, id in ids.items()]
    rows += [(entry.id, entry.missing, entry.family) for entry in found]
    width, tuned = max(len(name) for name, *_ in rows), [name.partition("-") for name in options("tuned")]
    lines = []
    for name, needed, family in rows:
        status = "runs   " if needed is None else "missing"
        install = "" if needed is None else f": pip install '{needed}'"
        algorithms = [algo for algo, _, env in tuned if env == name or (env == "mujoco" and is_mujoco(name))]
        tuned_for = f"; tuned for {', '.join(algorithms)}" if algorithms else ""
        lines.append(f"{name:<{width}}  {status}  {family}{install}{tuned_for}")
    return lines


def modes(args: Sequence[str]) -> list[str]:
    """List modes with their purpose."""
    return [f"{name:<8} {about('mode', name)}" for name in options("mode")]


def lists_of(module: str, function: str) -> Callable[[Sequence[str]], list[str]]:
    """Return a function that imports `module` when it is called, and then calls the module's `function`."""
    return lambda args: list(getattr(importlib.import_module(module), function)(args))


TOPICS = {
    "algos": algos,
    "envs": envs,
    "modes": modes,
    "keys": lists_of("drl_cli.settings.key_help", "answer"),
    "runs": lists_of("drl_cli.cli.list_runs", "run_lines"),
    "sweeps": lists_of("drl_cli.cli.list_runs", "sweep_lines"),
    "data": data_lines,
}


def about(group: str, option: str) -> str:
    """Return the first comment in the yaml file of an option."""
    lines = (conf_dir() / group / f"{option}.yaml").read_text().splitlines()
    return next(line for line in lines if not line.startswith("# @package")).removeprefix("# ")


if __name__ == "__main__":
    main()
