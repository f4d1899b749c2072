"""A group of runs in numbers: its joint curves, final returns, and the time to a threshold."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from drl_cli.runs.curve import Axis, JointCurve, join
from drl_cli.runs.groups import Group, compared
from drl_cli.runs.run import Run
from drl_cli.runs.statistics import interval, iqm
from drl_cli.types import Array

EARLY = 0.95  # of the env steps of a group's longest run: a curve that ends before that is worth a word


class Estimate(NamedTuple):
    """An IQM over seeds, and the ends of its 95% interval (NaN with one seed)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What a table and a figure show of a group; `steps_to` and `seconds_to` are medians, infinite where most failed.

    `env_steps` and `wall_s` are medians over the runs of where their last evaluations were.
    """

    group: Group
    curves: dict[Axis, JointCurve]
    final: Estimate
    env_steps: float
    wall_s: float
    threshold: float | None
    num_reached: int
    steps_to: float
    seconds_to: float

    def remarks(self) -> list[str]:
        """What its numbers do not show: equal seeds, and a joint curve that ends before some of its runs do."""
        lines, runs = [], self.group.runs
        seeds = Counter((run.config.get("seed"), str(compared(run))) for run in runs)
        if twice := [str(seed) for (seed, _), num in seeds.items() if num > 1]:
            lines.append(f"several runs have seed {', '.join(twice)}: they may be no independent ones")
        unfinished = [run for run in runs if run.status != "done"]
        first = min(unfinished, key=lambda run: run.curve.env_steps[-1], default=runs[0])
        end, latest = first.curve.env_steps[-1], max(run.curve.env_steps[-1] for run in runs)
        if unfinished and end < EARLY * latest:
            lines.append(f"its curve ends at {end:,.0f} of {latest:,.0f} env steps, with {first.id} ({first.status})")
        return lines


def compare(group: Group, threshold: float | None) -> Comparison:
    """The numbers of a group; without a threshold that of its runs' stop.return, where they have the same."""
    curves = [run.curve for run in group.runs]
    done = [run.status == "done" for run in group.runs]
    goal = group.common("stop.return") if threshold is None else threshold
    times = [curve.reaches(np.inf if goal is None else goal) for curve in curves]
    return Comparison(
        group,
        {axis: join(curves, done, axis) for axis in ("env_steps", "wall_s")},
        final=estimate(np.array([curve.returns[-1] for curve in curves])),
        env_steps=median(float(curve.env_steps[-1]) for curve in curves),
        wall_s=median(float(curve.wall_s[-1]) for curve in curves),
        threshold=goal,
        num_reached=sum(np.isfinite(steps) for steps, _ in times),
        steps_to=float(np.median([steps for steps, _ in times])),
        seconds_to=float(np.median([seconds for _, seconds in times])),
    )


def over_environments(comparisons: Sequence[Comparison]) -> dict[str, Estimate]:
    """The final returns of all runs of a label that is in every environment; empty for less than two of these.

    Returns are scaled to 0 ... 1 between the lowest and the highest evaluation that any run had in the environment.
    """
    rooms: dict[str, dict[str, list[Run]]] = defaultdict(dict)
    for one in comparisons:
        rooms[one.group.env][one.group.label] = one.group.runs
    if len(rooms) < 2:
        return {}
    labels = [one.group.label for one in comparisons if one.group.env == comparisons[0].group.env]
    strata: dict[str, list[Array]] = defaultdict(list)
    for groups in rooms.values():
        returns = np.concatenate([run.curve.returns for runs in groups.values() for run in runs])
        low, span = returns.min(), np.ptp(returns) or 1.0
        for label, runs in groups.items():
            strata[label].append((np.array([run.curve.returns[-1] for run in runs]) - low) / span)
    return {label: estimate(*strata[label]) for label in labels if len(strata[label]) == len(rooms)}


def estimate(*strata: Array) -> Estimate:
    """The IQM over runs, one score `[runs]` each; drawn again within each stratum."""
    between = interval(strata, iqm)
    return Estimate(float(iqm(np.concatenate(strata))), float(between.low), float(between.high))
