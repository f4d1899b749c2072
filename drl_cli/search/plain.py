"""Plain: the steps of a tree search in numpy, for B trees at once. kernel.cpp has the same steps in C++.

`x[trees, nodes]` has the elements `x[trees[i], nodes[i]]`: one node of each tree in `trees`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from drl_cli.chains.program import InPlace
from drl_cli.search import formulas
from drl_cli.search.formulas import Gumbel
from drl_cli.search.trees import Trees
from drl_cli.types import Array


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
