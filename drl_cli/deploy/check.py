"""Compare an exported policy with the trained policy: its actions on the same observations, and its returns."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.deploy.episodes import play_together
from drl_cli.deploy.policy import TrainedPolicy, action_at
from drl_cli.deploy.standalone import Policy, bounds
from drl_cli.envs.units import ArraySpec
from drl_cli.types import Array
from drl_cli.utils.seeding import integers

TOLERANCE = 1e-5
"""Largest allowed difference of two actions, relative to half the range (at least 1).

For choices: largest allowed loss of value, relative to the best value (at least 1).
"""
LEAST_OBSERVATIONS = 1000


@dataclass(frozen=True)
class Parity:
    """How closely an exported policy matches the trained policy.

    `largest_difference` is the maximum of `difference` over all `observations`, which come from episodes of the trained
    policy. The returns are means over drl-eval's first `episodes` episodes.
    """

    observations: int
    largest_difference: float
    tolerance: float
    episodes: int
    return_trained: float
    return_exported: float
    standard_error: float

    def problem(self) -> str | None:
        """Return why the policies differ, or None if they are the same."""
        if not self.largest_difference <= self.tolerance:
            return f"its actions are up to {self.largest_difference:.2g} off, {self.tolerance:g} are allowed"
        if abs(self.return_exported - self.return_trained) > 3 * self.standard_error + 1e-5 * abs(self.return_trained):
            return f"its mean return is {self.return_exported:.5g}, the run's is {self.return_trained:.5g}"
        return None


def compare(trained: TrainedPolicy, exported: Policy, episodes: int) -> Parity:
    """Play both policies on the same episodes, and compare their actions on LEAST_OBSERVATIONS or more observations."""
    differences = _Differences(trained, exported)
    seed = trained.config.seed
    seeds = integers(seed, "confirm", episodes)
    returns = play_together(trained, trained, seeds, differences)
    while (num := differences.count) < LEAST_OBSERVATIONS:
        exported.reset()
        play_together(trained, trained, integers(seed, "confirm", episodes, index=1 + num), differences)
    exported_returns = play_together(exported, trained, seeds)
    return Parity(
        observations=differences.count,
        largest_difference=differences.largest,
        tolerance=TOLERANCE,
        episodes=episodes,
        return_trained=returns.mean(),
        return_exported=exported_returns.mean(),
        standard_error=math.sqrt((returns.var() + exported_returns.var()) / episodes),
    )


class _Differences:
    """Call the exported policy on every observation of the trained policy, and keep the largest difference."""

    def __init__(self, trained: TrainedPolicy, exported: Policy) -> None:
        self.outputs, self.exported = trained.units.outputs, exported
        self.count, self.largest = 0, 0.0

    def __call__(self, obs: Any, masks: Any, actions: Any, running: Array) -> None:
        exported_actions, values = self.exported(obs, masks), self.exported.values
        ends = np.cumsum([n for part in self.outputs for n in part.choices])
        values_of_choices = iter(() if values is None else np.split(values, ends[:-1], 1))
        for part in self.outputs:
            trained, exported = (action_at(each, part.path)[running] for each in (actions, exported_actions))
            of_part = [next(values_of_choices)[running] for _ in part.choices] if values is not None else []
            largest = np.maximum(self.largest, difference(part, trained, exported, of_part))  # NaN stays NaN
            self.largest = float(largest)
        self.count += int(running.sum())


def difference(part: ArraySpec, trained: Array, exported: Array, values: list[Array]) -> float:
    """Return the largest difference of two batches of actions, relative to half the action's range.

    For choices, return how far the value of the trained choice is at most below the best value, in units of
    max(1, |best value|). `values` are the exported policy's values: an array `[n, choices]` for each component of the
    action. If `values` is empty, return infinity if any choice differs, else 0.
    """
    if not part.choices:
        low, high = bounds(vars(part))
        half = np.where(np.isfinite(high - low), (high - low) / 2, 1.0).clip(1.0).reshape(part.shape)
        return float((np.abs(trained.astype(np.float64) - exported) / half).max(initial=0.0))
    if not values:
        return 0.0 if np.array_equal(trained, exported) else math.inf
    choices = (trained - np.array(part.start)).reshape(len(trained), len(values))
    loss = 0.0
    for choice, value in zip(choices.T, values, strict=True):
        best, taken = value.max(1), np.take_along_axis(value, choice[:, None].astype(np.int64), 1)[:, 0]
        loss = max(loss, float(((best - taken) / np.maximum(1.0, np.abs(best))).max(initial=0.0)))
    return loss
