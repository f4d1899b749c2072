"""The arrays of B search trees, which the steps in numpy and in C++ both change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drl_cli.types import Array


@dataclass(eq=False)
class Trees:
    """B trees of at most M nodes, with A actions at each node. Node 0 is the root, and node i is made by simulation i.

    N(s) counts the evaluation of s and the simulations that went on from it: 1 plus the sum of N(s, a). An action whose
    prior is 0 is never selected. Of scores that differ by at most 1e-6, the first is selected.
    """

    roots: int
    nodes: int
    actions: int
    child: Array = field(init=False)
    """The node that an action leads to, int32 `[B, M, A]`, or -1."""
    visits: Array = field(init=False)
    """N(s, a), int32 `[B, M, A]`."""
    q: Array = field(init=False)
    """Q(s, a), the reward plus the discounted value of the child, float64 `[B, M, A]`; 0 if never visited."""
    prior: Array = field(init=False)
    """P(s, a), probabilities, float64 `[B, M, A]`."""
    parent: Array = field(init=False)
    """int32 `[B, M]`."""
    action: Array = field(init=False)
    """The action that leads from the parent to the node, int32 `[B, M]`."""
    node_visits: Array = field(init=False)
    """N(s), int32 `[B, M]`."""
    total: Array = field(init=False)
    """The model's value of s plus the returns of the simulations from s, float64 `[B, M]`; V(s) = total / N(s)."""
    raw_value: Array = field(init=False)
    """The model's value, float64 `[B, M]`."""
    reward: Array = field(init=False)
    """The reward on the way to the node, float64 `[B, M]`."""
    discount: Array = field(init=False)
    """The discount of the node's value, float64 `[B, M]`."""
    low: Array = field(init=False)
    """The least Q(s, a) that the tree ever had, float64 `[B]`."""
    high: Array = field(init=False)
    """The largest."""
    row: Array = field(init=False)
    """b M + s for the selected node s, int64 `[B]`."""
    chosen: Array = field(init=False)
    """The selected action, which has no child yet, int64 `[B]`."""

    def __post_init__(self) -> None:
        edges, nodes = (self.roots, self.nodes, self.actions), (self.roots, self.nodes)
        self.child = np.full(edges, -1, np.int32)
        self.visits = np.zeros(edges, np.int32)
        self.q, self.prior = np.zeros((2, *edges))
        self.parent, self.action, self.node_visits = np.zeros((3, *nodes), np.int32)
        self.total, self.raw_value, self.reward, self.discount = np.zeros((4, *nodes))
        self.low, self.high = np.full(self.roots, np.inf), np.full(self.roots, -np.inf)
        self.row, self.chosen = np.zeros((2, self.roots), np.int64)

    @property
    def value(self) -> Array:
        """V of the roots `[B]`."""
        value: Array = self.total[:, 0] / self.node_visits[:, 0]
        return value
