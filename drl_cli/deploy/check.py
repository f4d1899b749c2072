"""Whether an exported policy does what the trained one does: on observations of real episodes, and in its own ones."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from drl_cli.deploy.episodes import play_together
from drl_cli.deploy.policy import TrainedPolicy, at
from drl_cli.deploy.standalone import Policy, bounds
from drl_cli.envs.units import ArraySpec
from drl_cli.types import Array
from drl_cli.utils.seeding import integers

TOLERANCE = 1e-5
"""Of actions, in units of half the range of a dimension (or of 1, where that is less); of the values of choices."""
LEAST_OBSERVATIONS = 1000


@dataclass(frozen=True)
class Parity:
    """How far an exported policy is from the trained one.

    `largest_difference` is that of any action, or how much worse a choice is, on so many `observations` of the trained
    policy's episodes. The returns are means over the same `episodes`, which are the first ones of drl-eval.
    """

    observations: int
    largest_difference: float
    tolerance: float
    episodes: int
    return_trained: float
    return_exported: float
    standard_error: float

    def problem(self) -> str | None:
        """Why it is not the same policy; None when it is."""
        if not self.largest_difference <= self.tolerance:
            return f"its actions are up to {self.largest_difference:.2g} off, {self.tolerance:g} are allowed"
        if abs(self.return_exported - self.return_trained) > 3 * self.standard_error + 1e-5 * abs(self.return_trained):
            return f"its mean return is {self.return_exported:.5g}, that of the run's is {self.return_trained:.5g}"
        return None

    def numbers(self) -> dict[str, Any]:
        """For spec.json."""
        return asdict(self)


def compare(trained: TrainedPolicy, exported: Policy, episodes: int) -> Parity:
    """Play both on the same episodes."""
    beside = _Beside(trained, exported)
    config = trained.config
    seeds = integers(config.seed, "confirm", episodes)
    returns = play_together(trained, trained, seeds, beside)
    while beside.observations < LEAST_OBSERVATIONS:
        more = integers(config.seed, "confirm", episodes, index=1 + beside.observations)
        exported.reset()
        play_together(trained, trained, more, beside)
    own = play_together(exported, trained, seeds)
    error = math.sqrt((returns.var() + own.var()) / episodes)
    return Parity(
        beside.observations, beside.largest, TOLERANCE, episodes, returns.mean(), own.mean(), error
    )  # fmt: skip


class _Beside:
    """Has the exported policy act beside the trained one."""

    def __init__(self, trained: TrainedPolicy, exported: Policy) -> None:
        self.outputs, self.exported = trained.units.outputs, exported
        self.observations, self.largest = 0, 0.0

    def __call__(self, obs: Any, masks: Any, actions: Any, running: Array) -> None:
        own = self.exported(obs, masks)
        values = self.exported.values
        ends = np.cumsum([n for part in self.outputs for n in part.choices])
        each = iter(() if values is None else np.split(values, ends[:-1], 1))
        for part in self.outputs:
            theirs, ours = at(actions, part.path)[running], at(own, part.path)[running]
            own_values = [next(each)[running] for _ in part.choices] if values is not None else []
            self.largest = float(np.maximum(self.largest, difference(part, theirs, ours, own_values)))  # NaN stays
        self.observations += int(running.sum())


def difference(part: ArraySpec, theirs: Array, ours: Array, values: list[Array]) -> float:
    """The largest; of choices by how much less the other one is worth, and infinite where that is not known."""
    if not part.choices:
        low, high = bounds(vars(part))
        half = np.where(np.isfinite(high - low), (high - low) / 2, 1.0).clip(1.0).reshape(part.shape)
        return float((np.abs(theirs.astype(np.float64) - ours) / half).max(initial=0.0))
    if not values:
        return 0.0 if np.array_equal(theirs, ours) else math.inf
    chosen = (theirs - np.array(part.start)).reshape(len(theirs), len(values))
    loss = 0.0
    for choice, worth in zip(chosen.T, values, strict=True):
        best, taken = worth.max(1), np.take_along_axis(worth, choice[:, None].astype(np.int64), 1)[:, 0]
        loss = max(loss, float(((best - taken) / np.maximum(1.0, np.abs(best))).max(initial=0.0)))
    return loss
