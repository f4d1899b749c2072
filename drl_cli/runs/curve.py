"""A run's evaluations in the order of time, and those of several runs on one grid."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from drl_cli.runs.statistics import Interval, interval, iqm
from drl_cli.types import Array

Axis: TypeAlias = Literal["env_steps", "wall_s"]

MOST_POINTS = 200  # of a joint curve: more can't be seen, and each costs a bootstrap


@dataclass(frozen=True)
class Curve:
    """Evaluations: environment steps, wall seconds and mean return, float64 `[evaluations]` each, in order of time."""

    env_steps: Array
    wall_s: Array
    returns: Array

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def best(self) -> float | None:
        """The highest mean return; None before the first evaluation."""
        return float(self.returns.max()) if len(self) else None

    @property
    def final(self) -> float | None:
        """The last mean return."""
        return float(self.returns[-1]) if len(self) else None

    def x(self, axis: Axis) -> Array:
        """Where the evaluations are on this axis."""
        return self.env_steps if axis == "env_steps" else self.wall_s

    def at(self, axis: Axis, grid: Array) -> Array:
        """The return of the last evaluation at or before each point `[points]`; NaN before the first."""
        last = np.searchsorted(self.x(axis), grid, side="right") - 1
        return np.where(last >= 0, self.returns[np.maximum(last, 0)], np.nan)

    def reaches(self, threshold: float) -> tuple[float, float]:
        """Environment steps and seconds at the first evaluation at or above the threshold; infinite without one."""
        hits = np.flatnonzero(self.returns >= threshold)
        return (float(self.env_steps[hits[0]]), float(self.wall_s[hits[0]])) if len(hits) else (np.inf, np.inf)


@dataclass(frozen=True)
class JointCurve:
    """IQM of several runs' returns at points `x`, with its bootstrap interval, float64 `[points]` each.

    From `held_from` on some runs, which are done, count with their last return.
    """

    x: Array
    iqm: Array
    low: Array
    high: Array
    held_from: float


def join(curves: Sequence[Curve], done: Sequence[bool], axis: Axis) -> JointCurve:
    """The curves, of which each has an evaluation, on one grid: all points where one of them was evaluated.

    It begins where every run has an evaluation. A run that is done (it took all its steps, or reached its goal) has its
    last return from then on; one that was cut off, or still goes on, ends the curve. At most MOST_POINTS are kept.
    """
    places = [curve.x(axis) for curve in curves]
    start = max(x[0] for x in places)
    ends = [x[-1] for x, is_done in zip(places, done, strict=True) if not is_done]
    end = min(ends, default=max(x[-1] for x in places))
    grid = np.unique(np.concatenate(places))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > MOST_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, MOST_POINTS).round().astype(int)]
    scores = np.stack([curve.at(axis, grid) for curve in curves])
    between: Interval = interval([scores], iqm)
    held = min((x[-1] for x, is_done in zip(places, done, strict=True) if is_done), default=np.inf)
    return JointCurve(grid, iqm(scores), between.low, between.high, held)


def read_curve(path: Path) -> Curve:
    """The lines of an eval.csv that are complete and finite; none where the file is not there."""
    points = []
    try:
        lines = path.read_text().splitlines(keepends=True)
    except OSError:
        lines = []
    for line in csv.DictReader(line for line in lines if line.endswith("\n")):
        try:
            point = [float(line[name]) for name in ("env_steps", "wall_s", "mean")]
        except (KeyError, TypeError, ValueError):  # damaged, or of another kind of file
            continue
        if np.isfinite(point).all():
            points.append(point)
    table = np.array(points, np.float64).reshape(-1, 3)
    return Curve(*table[np.argsort(table[:, 0], kind="stable")].T)
