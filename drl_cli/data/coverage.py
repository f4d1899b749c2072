"""How much of the action space a dataset covers."""

import numpy as np

from drl_cli.data.dataset import Dataset
from drl_cli.types import Array

BINS = 20
"""The range [-1, 1] of a box action is divided into this number of equal parts."""
PART_STEPS = 1 << 16


def coverage(dataset: Dataset) -> float:
    """Return the part of the action space that occurs in a dataset, from 0 to 1.

    This is the share of the choices that occur, or the share of BINS that occur. With several components or dimensions,
    it is their mean.
    """
    action = dataset.spec.action
    sizes = np.array(action.choices or [BINS] * action.size)
    occurs = np.zeros((len(sizes), sizes.max()), np.bool_)
    for first in range(0, dataset.facts.steps, PART_STEPS):
        actions = dataset.read(first, min(first + PART_STEPS, dataset.facts.steps))["action"]
        for row, column in zip(occurs, _bins(actions, action.kind == "box").T, strict=True):
            row[column] = True
    return float((occurs.sum(1) / sizes).mean())


def _bins(actions: Array, is_box: bool) -> Array:
    """Return the choices or bins of actions, int `[n, dimensions]`."""
    columns = actions.reshape(len(actions), -1)
    return np.clip((columns + 1) / 2 * BINS, 0, BINS - 1).astype(np.int64) if is_box else columns
