"""eval.csv, the evaluations of a run: its columns, its complete lines, and the learning curve in them."""

import csv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from drl_cli.types import Array
from drl_cli.utils.files import read_file
from drl_cli.utils.run_clock import Unit

Axis: TypeAlias = Literal["env_steps", "wall_s"]
EVAL_COLUMNS = (
    *("env_steps", "opt_steps", "version", "wall_s"),
    *("mean", "std", "min", "max", "median", "episodes", "length_mean"),
)


@dataclass(frozen=True)
class Curve:
    """A run's evaluations in order, `[evaluations]` each: positions of its clock, wall-clock seconds and mean returns.

    Positions are environment steps, or updates of a run in mode=offline.
    """

    positions: Array
    wall_s: Array
    returns: Array

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def best(self) -> float | None:
        return float(self.returns.max()) if len(self) else None

    @property
    def final(self) -> float | None:
        return float(self.returns[-1]) if len(self) else None

    def x(self, axis: Axis) -> Array:
        return self.positions if axis == "env_steps" else self.wall_s

    def smoothed(self, num: int) -> "Curve":
        """Return the curve with each return replaced by the mean of the last `num` returns."""
        return self if num == 1 else replace(self, returns=moving_mean(self.returns, num))

    def at(self, axis: Axis, grid: Array) -> Array:
        """Return, for each grid point `[points]`, the return of the last evaluation so far, or NaN if there is none."""
        last = np.searchsorted(self.x(axis), grid, side="right") - 1
        return np.where(last >= 0, self.returns[np.maximum(last, 0)], np.nan)

    def reaches(self, threshold: float) -> tuple[float, float]:
        """Return the position and the seconds of the first evaluation that reaches the threshold, else infinity."""
        hits = np.flatnonzero(self.returns >= threshold)
        return (float(self.positions[hits[0]]), float(self.wall_s[hits[0]])) if len(hits) else (np.inf, np.inf)


def moving_mean(values: Array, num: int) -> Array:
    """Return, for each value, the mean of this value and up to `num` - 1 earlier values, `[points]`."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - num)
    means: Array = (sums[last] - sums[first]) / (last - first)
    return means


def read_curve(path: Path, unit: Unit = "env_steps") -> Curve:
    """Read the complete and finite lines of an eval.csv, sorted by the column `unit`. A missing file has no lines."""
    points = []
    for cells in read_rows(path):
        try:
            point = [float(cells[name]) for name in (unit, "wall_s", "mean")]
        except (KeyError, ValueError):  # a damaged line, or a file with other columns
            continue
        if np.isfinite(point).all():
            points.append(point)
    table = np.array(points, np.float64).reshape(-1, 3)
    return Curve(*table[np.argsort(table[:, 0], kind="stable")].T)


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the cells of each complete line of an eval.csv by column. Lines with another number of cells are left out.

    A missing file, or one with a damaged first line, has no lines.
    """
    lines = read_file(path).decode(errors="replace").splitlines(keepends=True) if path.is_file() else []
    head, *rows = [line for line in lines if line.endswith("\n")] or [""]
    try:
        names = next(csv.reader([head]), [])
    except csv.Error:
        return
    for row in rows:
        with suppress(ValueError):  # a damaged line
            yield dict(zip(names, row.rstrip("\r\n").split(","), strict=True))
