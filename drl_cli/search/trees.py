"""The arrays of B search trees, which the steps in numpy and in C++ both change."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from drl_cli.types import Array

EDGES, NODES, ROOTS = 3, 2, 1
LAYOUT: dict[str, tuple[type[np.generic], int]] = {  # in the order of kernel.cpp
    "q": (np.float64, EDGES),
    "prior": (np.float64, EDGES),
    "total": (np.float64, NODES),
    "raw_value": (np.float64, NODES),
    "reward": (np.float64, NODES),
    "discount": (np.float64, NODES),
    "low": (np.float64, ROOTS),
    "high": (np.float64, ROOTS),
    "row": (np.int64, ROOTS),
    "chosen": (np.int64, ROOTS),
    "child": (np.int32, EDGES),
    "visits": (np.int32, EDGES),
    "parent": (np.int32, NODES),
    "action": (np.int32, NODES),
    "node_visits": (np.int32, NODES),
}


class Trees:
    """B trees of at most M nodes, with A actions at each node. Node 0 is the root, and node i is made by simulation i.

    N(s) counts the evaluation of s and the simulations that went on from it: 1 plus the sum of N(s, a). An action whose
    prior is 0 is never selected. Of scores that differ by at most 1e-6, the first is selected.

    The arrays are parts of one buffer. They are 0 at first, and made as numpy arrays when they are used.
    """

    child: Array
    """The node that an action leads to, int32 `[B, M, A]`, or 0."""
    visits: Array
    """N(s, a), int32 `[B, M, A]`."""
    q: Array
    """Q(s, a), the reward plus the discounted value of the child, float64 `[B, M, A]`; 0 if never visited."""
    prior: Array
    """P(s, a), probabilities, float64 `[B, M, A]`."""
    parent: Array
    """int32 `[B, M]`."""
    action: Array
    """The action that leads from the parent to the node, int32 `[B, M]`."""
    node_visits: Array
    """N(s), int32 `[B, M]`."""
    total: Array
    """The model's value of s plus the returns of the simulations from s, float64 `[B, M]`; V(s) = total / N(s)."""
    raw_value: Array
    """The model's value, float64 `[B, M]`."""
    reward: Array
    """The reward on the way to the node, float64 `[B, M]`."""
    discount: Array
    """The discount of the node's value, float64 `[B, M]`."""
    low: Array
    """The least Q(s, a) that the tree ever had, float64 `[B]`."""
    high: Array
    """The largest."""
    row: Array
    """b M + s for the selected node s, int64 `[B]`."""
    chosen: Array
    """The selected action, which has no child yet, int64 `[B]`."""

    def __init__(self, roots: int, nodes: int, actions: int) -> None:
        self.roots, self.nodes, self.actions = roots, nodes, actions
        self._places, size = _places(roots, nodes, actions)
        self.buffer = np.zeros(size)

    def __getattr__(self, name: str) -> Any:
        if name not in LAYOUT:
            raise AttributeError(name)
        shape, dtype, offset = self._places[name]
        view = np.ndarray(shape, dtype, self.buffer, offset)
        setattr(self, name, view)
        return view

    @property
    def value(self) -> Array:
        """V of the roots `[B]`."""
        value: Array = self.total[:, 0] / self.node_visits[:, 0]
        return value


@lru_cache(maxsize=64)
def _places(*sizes: int) -> tuple[dict[str, tuple[tuple[int, ...], type[np.generic], int]], int]:
    """Return shape, type and first byte of each array, and the size of the buffer in numbers of 8 bytes."""
    places, end = {}, 0
    for name, (dtype, dimensions) in LAYOUT.items():
        shape = sizes[:dimensions]
        places[name] = (shape, dtype, end)
        end += int(np.prod(shape)) * np.dtype(dtype).itemsize
    return places, -(-end // 8)
