"""The evaluations of runs as columns, for tables of other libraries."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drl_cli.runs.run import Run

NAMES = {"env": "env.name", "algo": "algo.preset", "mode": "mode", "seed": "seed"}
"""The columns that say which run it is, and their keys in the config of the run."""


def columns_of(folders: Sequence[Path]) -> dict[str, list[Any]]:
    """Return the lines of the eval.csv of all runs as columns. A number that a line does not have is NaN.

    The last line of a run that was killed may be incomplete and is left out.
    """
    rows = [row for folder in folders for row in _rows(Run(folder))]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


def _rows(run: Run) -> list[dict[str, Any]]:
    path = run.folder / "eval.csv"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    which = {"run": run.id, **{name: run.config.get(key) for name, key in NAMES.items()}}
    whole = csv.DictReader(line for line in lines if line.endswith("\n"))
    return [which | {name: _number(cell) for name, cell in line.items()} for line in whole if None not in line]


def _number(cell: str | None) -> float | int:
    """Return the number in a cell, or NaN for an empty or a missing cell."""
    if not cell:
        return math.nan
    value = float(cell)
    return int(value) if value.is_integer() and "." not in cell and "e" not in cell.lower() else value
