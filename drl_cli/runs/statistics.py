"""Interquartile means, their bootstrap intervals (Agarwal et al. 2021, arXiv 2108.13264), and joint curves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from drl_cli.run_folder.evaluations import Axis, Curve
from drl_cli.types import Array

CONFIDENCE = 0.95
RESAMPLES = 2000
MAX_POINTS = 200  # of a joint curve; each point needs a bootstrap, and more points would not be visible
MAX_DRAWN = 1 << 22  # number of float64 values drawn at once, 32 MB


def iqm(scores: Array, axis: int = 0) -> Array:
    """Return the interquartile mean: the mean without the lowest and the highest quarter of scores (rounded down)."""
    num = scores.shape[axis]
    middle = np.arange(num // 4, num - num // 4)
    means: Array = np.sort(scores, axis).take(middle, axis).mean(axis)
    return means


def interval(strata: Sequence[Array], statistic: Callable[[Array, int], Array]) -> tuple[Array, Array]:
    """Return the ends `[...]` of the 95% percentile bootstrap interval of a statistic. A single score gives NaN.

    Each resample draws, from each stratum `[n, ...]`, n scores with replacement.
    """
    rng, shape = np.random.default_rng(0), strata[0].shape[1:]
    if min(len(scores) for scores in strata) < 2:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    at_once = max(1, MAX_DRAWN // max(1, sum(scores.size for scores in strata)))
    values = []
    for first in range(0, RESAMPLES, at_once):
        num = min(at_once, RESAMPLES - first)
        drawn = [scores[rng.integers(len(scores), size=(num, len(scores)))] for scores in strata]
        values.append(statistic(np.concatenate(drawn, 1), 1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(values), (tail, 1 - tail), axis=0)
    return low, high


def paired(first: Array, second: Array) -> list[tuple[float, float, float]]:
    """Compare two scores of the same episodes, `[episodes]` each, by values with the ends of their 95% intervals.

    Return the mean difference, and the probability of improvement: the share of episodes in which the first score is
    higher, and half of the episodes with equal scores.
    """
    better, found = (first > second) + 0.5 * (first == second), list[tuple[float, float, float]]()
    for each in (first - second, better):
        low, high = interval([each], np.mean)
        found.append((float(each.mean()), float(low), float(high)))
    return found


@dataclass(frozen=True)
class JointCurve:
    """The interquartile mean of several runs' returns, and its bootstrap interval. All arrays are `[points]`."""

    x: Array
    iqm: Array
    low: Array
    high: Array
    held_from: float  # for larger x, the last return of at least one finished run is repeated


def join(curves: Sequence[Curve], done: Sequence[bool], axis: Axis) -> JointCurve:
    """Return the joint curve of runs at up to MAX_POINTS points. The curve starts where every run has an evaluation.

    Finished runs (`done`) repeat their last return. The curve ends where the first unfinished run ends, but has
    at least one point.
    """
    points = [curve.x(axis) for curve in curves]
    start = max(x[0] for x in points)
    ends = [x[-1] for x, is_done in zip(points, done, strict=True) if not is_done]
    end = max(start, min(ends, default=max(x[-1] for x in points)))
    grid = np.unique(np.concatenate(points))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > MAX_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(int)]
    scores = np.stack([curve.at(axis, grid) for curve in curves])
    held_from = min((x[-1] for x, is_done in zip(points, done, strict=True) if is_done), default=np.inf)
    return JointCurve(grid, iqm(scores), *interval([scores], iqm), held_from)
