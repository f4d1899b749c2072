"""drl-list data: steps, returns, actions and spaces of datasets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drl_cli.cli.command import OUTPUT_DIR_HELP, option
from drl_cli.errors import UsageError
from drl_cli.runs.data_env import all_datasets, dataset_path
from drl_cli.runs.table import NONE, number, table
from drl_cli.settings.options import parse, usage
from drl_cli.types import Column, EnvSpec, leaves
from drl_cli.utils.shown import score_text

COUNTS = ("steps", "episodes", "ended", "cut", "mean", "min", "max", "score", "covers")
HEAD = ("dataset", "env", *COUNTS, "observations", "actions")
LEFT = ("dataset", "env", "observations", "actions")
EXAMPLES = ("drl-list data", "drl-list data minari:D4RL/hopper/medium-v2", "drl-list data run:latest my.npz")
COLUMNS = """\
ended: episodes that terminated; cut: episodes that were truncated; mean, min, max: returns of whole episodes;
score: the mean return, 0 for a random policy and 100 for an expert, if both are known;
covers: the part of the action space that occurs"""


@dataclass(frozen=True)
class Options:
    """Options of drl-list data."""

    datasets: tuple[str, ...] = option((), "paths, minari:ID, run:RUN; none: those below output_dir and Minari's")
    reference: tuple[float, ...] | None = option(None, "[random,expert]: the returns for normalised scores")
    download: bool = option(False, "let Minari download a missing dataset minari:ID")
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def help_text() -> str:
    """Return the help of `drl-list data`."""
    about = "datasets, each read once as a whole"
    return f"{usage('drl-list data', Options, about, EXAMPLES)}\n\n{COLUMNS}"


def data_lines(args: Sequence[str]) -> list[str]:
    """Return the table of datasets. Raise UsageError with the problems of all datasets that were named.

    Of datasets that were not named, the problems are lines after the table.
    """
    options = parse(args, Options, positional="datasets")
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


def _row(source: str, options: Options) -> list[str]:
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
    return [source, facts.env or NONE, *counts, *returns, score, covered, _obs_text(spec), spec.action.text]


def _obs_text(spec: EnvSpec) -> str:
    return ", ".join(f"{path} {_column_text(column)}".strip() for path, column in leaves(spec.obs).items())


def _column_text(column: Column) -> str:
    if column.choices:
        return f"Discrete({','.join(map(str, column.choices))})"
    return f"{column.dtype}({','.join(map(str, column.shape))})"
