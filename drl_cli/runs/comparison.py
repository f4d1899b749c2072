"""Comparison: a group's joint curves, final returns, and the steps and seconds until a threshold is reached."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from drl_cli.data.dataset import normalised
from drl_cli.run_folder.evaluations import Axis
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.groups import Group, seed_of, without_repeats
from drl_cli.runs.statistics import JointCurve, interval, iqm, join
from drl_cli.types import Array
from drl_cli.utils.run_clock import UNIT_TEXTS, Unit

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
