"""The evaluations of runs as columns, for tables of other libraries."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from drl_cli.runs.curve import read_rows
from drl_cli.runs.run import Run

NAMES = {"env": "env.name", "algo": "algo.preset", "mode": "mode", "seed": "seed"}
"""The columns that say which run it is, and their keys in the config of the run."""

ALWAYS = ("run", *NAMES, "env_steps", "wall_s", "mean")


def columns_of(folders: Sequence[Path]) -> dict[str, list[Any]]:
    """Return the lines of the eval.csv of all runs as columns. A number that a line does not have is NaN.

    Damaged lines are left out, as in `read_rows`. Without any line, the columns are those of ALWAYS.
    """
    rows = [row for folder in folders for row in _rows(Run(folder))]
    names = dict.fromkeys(name for row in rows for name in row) or ALWAYS
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


def _rows(run: Run) -> list[dict[str, Any]]:
    which = {"run": run.id, **{name: run.config.get(key) for name, key in NAMES.items()}}
    found = []
    for cells in read_rows(run.folder / "eval.csv"):
        with suppress(ValueError):  # a damaged cell
            found.append(which | {name: _number(cell) for name, cell in cells.items()})
    return found


def _number(cell: str) -> float | int:
    """Return the number in a cell, or NaN for an empty cell. Raise ValueError for another text."""
    if not cell:
        return math.nan
    value = float(cell)
    return int(value) if value.is_integer() and "." not in cell and "e" not in cell.lower() else value
