"""Trees: the arrays of B search trees. The search in numpy (plain.py) and in C++ (kernel.cpp) use the same arrays."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from drl_cli.types import Array

EDGES, NODES, ROOTS = 3, 2, 1
"""The numbers of dimensions of arrays `[B, M, A]`, `[B, M]` and `[B]`."""
LAYOUT: dict[str, tuple[type[np.generic], int]] = {  # the order in the buffer, the same as in kernel.cpp
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
    """B search trees of up to M nodes, with A actions in each node, as numpy arrays.

    Node 0 is the root, and simulation i adds node i. The number of visits N(s) of a node is 1, for the evaluation by
    the model, plus the number of simulations that went through the node. An action whose prior is 0 is never selected.
    Of the actions whose scores are at most 1e-6 below the largest score, the first is selected.

    All arrays are views of one buffer, which is 0 at first. A view is made when it is first used.
    """

    child: Array
    """The index of the node that an action leads to, int32 `[B, M, A]`; 0 if there is no such node yet."""
    visits: Array
    """N(s, a), the number of visits of an action, int32 `[B, M, A]`."""
    q: Array
    """Q(s, a), the reward plus the discounted value of the child, float64 `[B, M, A]`; 0 if never visited."""
    prior: Array
    """P(s, a), the model's probability of an action, float64 `[B, M, A]`."""
    parent: Array
    """The index of the parent node, int32 `[B, M]`."""
    action: Array
    """The action that leads from the parent to the node, int32 `[B, M]`."""
    node_visits: Array
    """N(s), the number of visits of a node, int32 `[B, M]`."""
    total: Array
    """The model's value of a node plus the returns of all simulations through it, float64 `[B, M]`.

    The node's value is V(s) = total / N(s).
    """
    raw_value: Array
    """The model's value of a node, float64 `[B, M]`."""
    reward: Array
    """The reward of the step from the parent to the node, float64 `[B, M]`."""
    discount: Array
    """The factor of the node's value in the return of its parent, float64 `[B, M]`."""
    low: Array
    """The smallest Q(s, a) that has occurred in the tree, float64 `[B]`; inf before the first simulation."""
    high: Array
    """The largest Q(s, a) that has occurred in the tree, float64 `[B]`; -inf before the first simulation."""
    row: Array
    """The selected node s of tree b as the index b M + s among the nodes of all trees, int64 `[B]`."""
    chosen: Array
    """The selected action of the selected node, int64 `[B]`. It does not lead to a node yet."""

    def __init__(self, roots: int, nodes: int, actions: int) -> None:
        self.roots, self.nodes, self.actions = roots, nodes, actions
        self._places, size = _places(roots, nodes, actions)
        self.buffer = np.zeros(size)  # float64, so 8 bytes each

    def __getattr__(self, name: str) -> Any:
        if name not in LAYOUT:
            raise AttributeError(name)
        shape, dtype, offset = self._places[name]
        view = np.ndarray(shape, dtype, self.buffer, offset)
        setattr(self, name, view)  # so that the next use does not call __getattr__
        return view

    @property
    def value(self) -> Array:
        """The values V(s) of the roots, `[B]`."""
        value: Array = self.total[:, 0] / self.node_visits[:, 0]
        return value


@lru_cache(maxsize=64)
def _places(*sizes: int) -> tuple[dict[str, tuple[tuple[int, ...], type[np.generic], int]], int]:
    """Return shape, type and offset in bytes of each array in the buffer, and the buffer's size in units of 8 bytes.

    `sizes` are the numbers of roots, of nodes and of actions.
    """
    places, end = {}, 0
    for name, (dtype, dimensions) in LAYOUT.items():
        shape = sizes[:dimensions]
        places[name] = (shape, dtype, end)
        end += int(np.prod(shape)) * np.dtype(dtype).itemsize
    return places, math.ceil(end / 8)
