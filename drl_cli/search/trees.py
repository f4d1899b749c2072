"""Trees: the arrays of B search trees. The search in numpy (Plain) and in C++ (kernel.cpp) use the same arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from drl_cli.chains.program import InPlace
from drl_cli.search import formulas
from drl_cli.search.formulas import Gumbel
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


class Plain:
    """The steps of one search in B trees, with A actions in each node.

    Call `plant`, then `puct` or `gumbel`, then `choose(0)`, then `advance` once for each simulation, and then
    `finish_gumbel` if `gumbel` was called.
    """

    def __init__(self, trees: Trees) -> None:
        self._trees, self._all = trees, np.arange(trees.roots)
        self._scores: Callable[[Array, Array, int], Array]  # (trees, nodes, simulation) -> scores of actions [n, A]
        self._rule: tuple[Gumbel, Array]

    def plant(self, logits: Tensor, value: Tensor) -> None:
        """Add the roots to the trees. The model's policy logits are float32 `[B, A]`, and its values float32 `[B]`."""
        self._trees.low[:] = np.inf
        self._trees.high[:] = -np.inf
        self._grow(0, logits, value)

    def puct(self, exploration: Array) -> None:
        """Make `choose` select actions by PUCT scores, with the table `exploration` `[M + 1]` of formulas.py."""
        t = self._trees

        def scores(trees: Array, nodes: Array, simulation: int) -> Array:
            prior, visits, q = t.prior[trees, nodes], t.visits[trees, nodes], t.q[trees, nodes]
            factor = exploration[t.node_visits[trees, nodes]]
            return formulas.puct_scores(prior, visits, q, factor, t.low[trees], t.high[trees])

        self._scores = scores

    def gumbel(self, rule: Gumbel, noisy_logits: Array, needed_visits: Array) -> None:
        """Make `choose` select actions by Gumbel MuZero's scores.

        `noisy_logits`, float64 `[B, A]`, are Gumbel noise + logits of the roots. `needed_visits`, int32 `[simulations,
        B]`, is the schedule of sequential halving: simulation i selects an action of the root that has this number of
        visits.
        """
        t = self._trees

        def scores(trees: Array, nodes: Array, simulation: int) -> Array:
            raw_value, prior = t.raw_value[trees, nodes], t.prior[trees, nodes]
            visits, q = t.visits[trees, nodes], t.q[trees, nodes]
            if nodes[0] > 0:  # no node is a root, because all trees are at the same depth
                return formulas.interior_scores(rule, raw_value, prior, visits, q)
            root_scores = formulas.root_scores(rule, noisy_logits, raw_value, prior, visits, q)
            is_considered = visits == needed_visits[simulation][:, None]
            return np.where(is_considered, root_scores, -np.inf)

        self._scores, self._rule = scores, (rule, noisy_logits)

    def choose(self, simulation: int) -> None:
        """Select a node and an action of each tree for the next simulation; write the trees' `row` and `chosen`.

        From the root on, follow the action with the best score until an action does not lead to a node yet.
        """
        t, trees = self._trees, self._all
        nodes = np.zeros_like(trees)
        while len(trees):  # the trees whose walk goes on, and the node that each has reached
            action = formulas.first_best(self._scores(trees, nodes, simulation))
            t.row[trees], t.chosen[trees] = trees * t.nodes + nodes, action
            child = t.child[trees, nodes, action]
            goes_on = child > 0
            trees, nodes = trees[goes_on], child[goes_on]

    def advance(self, node: int, reward: Tensor, discount: Tensor, logits: Tensor, value: Tensor) -> None:
        """Add the node with index `node` to each tree, update its ancestors, and choose for the next simulation.

        The new node is the result of the chosen action. The model's `reward`, `discount` and `value` are `[B]`, and its
        `logits` are `[B, A]`, all float32 on the CPU.
        """
        t = self._trees
        parent = t.row - self._all * t.nodes
        t.parent[:, node] = parent
        t.action[:, node] = t.chosen
        t.child[self._all, parent, t.chosen] = node
        t.reward[:, node] = reward.numpy()
        t.discount[:, node] = discount.numpy()
        self._grow(node, logits, value)
        self._back_up(node)
        if node + 1 < t.nodes:
            self.choose(node)

    def simulate(self, node: int, program: InPlace, results: Sequence[Tensor]) -> bool:
        """Return False: the caller has to make each simulation. Only the C++ steps can make all in one call."""
        return False

    def _grow(self, node: int, logits: Tensor, value: Tensor) -> None:
        """Write the model's policy and value of a new node of each tree, from logits `[B, A]` and values `[B]`."""
        t = self._trees
        t.prior[:, node] = formulas.softmax(logits.numpy())
        t.raw_value[:, node] = value.numpy()
        t.total[:, node] = value.numpy()
        t.node_visits[:, node] = 1

    def _back_up(self, node: int) -> None:
        """Add the return of a new node to all its ancestors, and update Q and the numbers of visits on the way."""
        t, trees = self._trees, self._all
        nodes, returns = np.full(t.roots, node), t.raw_value[:, node].copy()
        while len(trees):  # the trees that have not reached their root, and the node that each has reached
            parent, action = t.parent[trees, nodes], t.action[trees, nodes]
            reward, discount = t.reward[trees, nodes], t.discount[trees, nodes]
            node_value = t.total[trees, nodes] / t.node_visits[trees, nodes]
            q = reward + discount * node_value
            returns = reward + discount * returns
            t.q[trees, parent, action] = q
            t.visits[trees, parent, action] += 1
            t.low[trees] = np.minimum(t.low[trees], q)
            t.high[trees] = np.maximum(t.high[trees], q)
            t.total[trees, parent] += returns
            t.node_visits[trees, parent] += 1
            goes_on = parent > 0
            trees, nodes, returns = trees[goes_on], parent[goes_on], returns[goes_on]

    def finish_gumbel(self) -> tuple[Array, Array]:
        """Return the best action of each root, int64 `[B]`, and the improved policies of the roots, float64 `[B, A]`.

        Among the actions with the most visits, the best action has the largest noise + logit + sigma(Q).
        """
        t, (rule, noisy_logits) = self._trees, self._rule
        visits = t.visits[:, 0]
        root = t.raw_value[:, 0], t.prior[:, 0], visits, t.q[:, 0]
        is_most_visited = visits == visits.max(-1, keepdims=True)
        scores = np.where(is_most_visited, formulas.root_scores(rule, noisy_logits, *root), -np.inf)
        return formulas.first_best(scores), formulas.improved_policy(rule, *root)
