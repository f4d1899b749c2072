"""Columns of steps that a reader adds, because they depend on later steps of the episode."""

from collections.abc import Iterable

import numpy as np

from drl_cli.data.dataset import Dataset
from drl_cli.replay.builders import NEXT_ACTION, RETURN, returns
from drl_cli.types import ActionSpec, Array, Column, Columns, Schema

SLICE = 4096
"""Steps that are read at a time."""


def data_schema(names: Iterable[str], action: ActionSpec) -> Schema:
    known = {NEXT_ACTION: action.column, RETURN: Column((), "float32")}
    return {name: known[name] for name in names}


class DataColumns:
    """Adds columns to the steps of a dataset.

    `next_action` is the action `n_step` steps later, or the last one of the episode. `mc_return` is the discounted sum
    of the rewards from this step until the end of the episode, also where the episode was cut. Rewards are clipped to
    [-clip, clip], and then multiplied by `scale`.
    """

    def __init__(
        self, names: Iterable[str], dataset: Dataset, n_step: int, gamma: float, scale: float, clip: float | None
    ) -> None:
        self.names, self.dataset, self.n_step = tuple(names), dataset, n_step
        if RETURN in self.names:
            reward = self._rewards() if clip is None else self._rewards().clip(-clip, clip)
            self.returns = returns(scale * reward, dataset.ends, gamma)

    def read(self, first: int, last: int) -> Columns:
        columns: Columns = {}
        if NEXT_ACTION in self.names:
            steps, ends = np.arange(first, last), self.dataset.ends
            later = np.minimum(steps + self.n_step, ends[np.searchsorted(ends, steps, "right")] - 1)
            columns[NEXT_ACTION] = self.dataset.read(first, int(later.max()) + 1)["action"][later - first]
        if RETURN in self.names:
            columns[RETURN] = self.returns[first:last]
        return columns

    def _rewards(self) -> Array:
        stops = range(0, int(self.dataset.ends[-1]), SLICE)
        last = int(self.dataset.ends[-1])
        return np.concatenate([self.dataset.read(stop, min(stop + SLICE, last))["reward"] for stop in stops])
