"""The steps of a search in numpy, for all trees at once. kernel.cpp has the same steps, and makes equal trees."""

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
    """The steps of one search: `plant`, then `puct` or `gumbel`, `choose(0)`, and `advance` for each further node."""

    def __init__(self, trees: Trees) -> None:
        self._trees, self._all = trees, np.arange(trees.roots)
        self._scores: Callable[[Array, Array, int], Array]
        self._rule: tuple[Gumbel, Array]

    def plant(self, logits: Tensor, value: Tensor) -> None:
        """Make the roots; `logits` are float32 `[B, A]`, and `value` is float32 `[B]`."""
        self._trees.low[:], self._trees.high[:] = np.inf, -np.inf
        self._grow(0, logits, value)

    def puct(self, exploration: Array) -> None:
        """Select actions by MuZero's scores from now on, with the table of `formulas.exploration`."""
        t = self._trees

        def scores(trees: Array, nodes: Array, simulation: int) -> Array:
            prior, visits, q = t.prior[trees, nodes], t.visits[trees, nodes], t.q[trees, nodes]
            factor = exploration[t.node_visits[trees, nodes]]
            return formulas.puct_scores(prior, visits, q, factor, t.low[trees], t.high[trees])

        self._scores = scores

    def gumbel(self, rule: Gumbel, base: Array, considered: Array) -> None:
        """Select actions as Gumbel MuZero does from now on.

        In simulation i, only actions of the root count that have `considered[i]` visits, int32 `[simulations, B]`.
        `base`, float64 `[B, A]`, is noise + logits of the roots.
        """
        t = self._trees

        def scores(trees: Array, nodes: Array, simulation: int) -> Array:
            raw_value, prior = t.raw_value[trees, nodes], t.prior[trees, nodes]
            visits, q = t.visits[trees, nodes], t.q[trees, nodes]
            if nodes[0] > 0:  # the trees are at equal depths
                return formulas.interior_scores(rule, raw_value, prior, visits, q)
            root = formulas.root_scores(rule, base, raw_value, prior, visits, q)
            return np.where(visits == considered[simulation][:, None], root, -np.inf)

        self._scores, self._rule = scores, (rule, base)

    def choose(self, simulation: int) -> None:
        """Follow the best actions from the root to one without a child; write `row` and `chosen` of the trees."""
        t, trees = self._trees, self._all
        nodes = np.zeros_like(trees)
        while len(trees):
            action = formulas.first_best(self._scores(trees, nodes, simulation))
            t.row[trees], t.chosen[trees] = trees * t.nodes + nodes, action
            child = t.child[trees, nodes, action]
            goes_on = child > 0
            trees, nodes = trees[goes_on], child[goes_on]

    def advance(self, node: int, reward: Tensor, discount: Tensor, logits: Tensor, value: Tensor) -> None:
        """Add a node to each tree after the chosen action, back its value up, and choose for the next simulation.

        `reward`, `discount` and `value` are `[B]`, and `logits` are `[B, A]`, all float32 on the CPU.
        """
        t = self._trees
        t.parent[:, node], t.action[:, node] = t.row - self._all * t.nodes, t.chosen
        t.child[self._all, t.parent[:, node], t.chosen] = node
        t.reward[:, node], t.discount[:, node] = reward.numpy(), discount.numpy()
        self._grow(node, logits, value)
        self._back_up(node)
        if node + 1 < t.nodes:
            self.choose(node)

    def simulate(self, node: int, program: InPlace, results: Sequence[Tensor]) -> bool:
        """Return False: only the kernel makes all simulations from a node on in one call."""
        return False

    def _grow(self, node: int, logits: Tensor, value: Tensor) -> None:
        t = self._trees
        t.prior[:, node] = formulas.softmax(logits.numpy())
        t.raw_value[:, node] = t.total[:, node] = value.numpy()
        t.node_visits[:, node] = 1

    def _back_up(self, node: int) -> None:
        t, trees = self._trees, self._all
        at, returns = np.full(t.roots, node), t.raw_value[:, node].copy()
        while len(trees):
            up, action = t.parent[trees, at], t.action[trees, at]
            reward, discount = t.reward[trees, at], t.discount[trees, at]
            q = reward + discount * (t.total[trees, at] / t.node_visits[trees, at])
            returns = reward + discount * returns
            t.q[trees, up, action] = q
            t.visits[trees, up, action] += 1
            t.low[trees], t.high[trees] = np.minimum(t.low[trees], q), np.maximum(t.high[trees], q)
            t.total[trees, up] += returns
            t.node_visits[trees, up] += 1
            goes_on = up > 0
            trees, at, returns = trees[goes_on], up[goes_on], returns[goes_on]

    def finish_gumbel(self) -> tuple[Array, Array]:
        """Return the best actions int64 `[B]` and the improved policy float64 `[B, A]` of the roots.

        The best action has the largest noise + logits + sigma(Q) of those with the most visits.
        """
        t, (rule, base) = self._trees, self._rule
        visits = t.visits[:, 0]
        state = t.raw_value[:, 0], t.prior[:, 0], visits, t.q[:, 0]
        is_last = visits == visits.max(-1, keepdims=True)
        scores = np.where(is_last, formulas.root_scores(rule, base, *state), -np.inf)
        return formulas.first_best(scores), formulas.improved_policy(rule, *state)
