"""Compare groups: interquartile means, bootstrap intervals (Agarwal et al. 2021, arXiv 2108.13264), joint curves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from drl_cli.data.dataset import normalised
from drl_cli.run_folder.evaluations import Axis, Curve
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.groups import Group, seed_of, without_repeats
from drl_cli.types import Array
from drl_cli.utils.run_clock import UNIT_TEXTS, Unit

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


EARLY = 0.95  # add a remark if a joint curve ends before this fraction of the longest run's steps


class Estimate(NamedTuple):
    """An interquartile mean over seeds, and the ends of its 95% interval, which are NaN for a single seed."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """The statistics of a group of runs. `runs` are the runs without repeats."""

    group: Group
    runs: list[Run]
    curves: dict[Axis, JointCurve]
    final: Estimate
    position: float  # at the last evaluation, median over the runs
    wall_s: float
    threshold: float | None
    num_reached: int
    steps_to: float  # until the threshold is reached, median over the runs; infinite if most runs miss it
    seconds_to: float

    @property
    def unit(self) -> Unit:
        """What the positions of the runs count. `chosen_groups` puts no runs of different modes into one group."""
        return self.runs[0].unit

    @property
    def score(self) -> float | None:
        """The normalised score of `final`, or None if the runs do not have the same `data.reference`."""
        reference = self.group.common("data.reference")
        return normalised(self.final.value, reference) if reference else None

    def remarks(self) -> list[str]:
        """Return a warning if runs have equal seeds, and one if an unfinished run cuts the joint curve short."""
        lines, runs = [], self.group.runs
        seeds = Counter(map(seed_of, runs))
        if twice := [str(seed) for seed, num in seeds.items() if num > 1]:
            lines.append(f"several runs have seed {', '.join(twice)}: only the newest of them counts")
        runs = self.runs
        unfinished = [run for run in runs if run.status != "done"]
        shortest = min(unfinished, key=lambda run: run.curve.positions[-1], default=runs[0])
        end, latest = shortest.curve.positions[-1], max(run.curve.positions[-1] for run in runs)
        if unfinished and end < EARLY * latest:
            of = f"{end:,.0f} of {latest:,.0f} {UNIT_TEXTS[self.unit]}"
            lines.append(f"its curve ends at {of}, with {shortest.id} ({shortest.status})")
        return lines


def compare(group: Group, threshold: float | None, smooth: int = 1) -> Comparison:
    """Return the statistics of a group. If `threshold` is None, use `stop.return` if all runs have the same value.

    The joint curves use the mean of each run's last `smooth` evaluations; the other numbers do not.
    """
    runs = without_repeats(group.runs)
    curves, done = [run.curve for run in runs], [run.status == "done" for run in runs]
    goal = group.common("stop.return") if threshold is None else threshold
    times = [curve.reaches(np.inf if goal is None else goal) for curve in curves]
    return Comparison(
        group,
        runs,
        {axis: join([curve.smoothed(smooth) for curve in curves], done, axis) for axis in ("env_steps", "wall_s")},
        final=estimate(np.array([curve.returns[-1] for curve in curves])),
        position=median(float(curve.positions[-1]) for curve in curves),
        wall_s=median(float(curve.wall_s[-1]) for curve in curves),
        threshold=goal,
        num_reached=sum(np.isfinite(steps) for steps, _ in times),
        steps_to=float(np.median([steps for steps, _ in times])),
        seconds_to=float(np.median([seconds for _, seconds in times])),
    )


def units_of(comparisons: Iterable[Comparison]) -> list[Unit]:
    """Return what the positions of the runs count: environment steps, updates, or both in this order."""
    return sorted({one.unit for one in comparisons})


def over_environments(comparisons: Sequence[Comparison]) -> dict[str, Estimate]:
    """Return each label's final return, scaled to [0, 1] in each environment. Skip labels that lack an environment."""
    by_env: dict[str, dict[str, list[Run]]] = defaultdict(dict)
    for comparison in comparisons:
        by_env[comparison.group.env][comparison.group.label] = comparison.runs
    if len(by_env) < 2:
        return {}
    strata: dict[str, list[Array]] = defaultdict(list)
    for groups in by_env.values():
        returns = np.concatenate([run.curve.returns for runs in groups.values() for run in runs])
        low, span = returns.min(), np.ptp(returns) or 1.0
        for label, runs in groups.items():
            strata[label].append((np.array([run.curve.returns[-1] for run in runs]) - low) / span)
    return {label: estimate(*scores) for label, scores in strata.items() if len(scores) == len(by_env)}


def estimate(*strata: Array) -> Estimate:
    """Return the interquartile mean over all runs. A stratum has the scores `[runs]` that are resampled together."""
    return Estimate(float(iqm(np.concatenate(strata))), *map(float, interval(strata, iqm)))
