"""A binary tree of partial sums over the slots of a table: draws slots in proportion to their values."""

import numpy as np

from drl_cli.types import Array


class SumTree:
    """Values >= 0 by slot, all 0 at first (Schaul et al. 2015, appendix B.2.1); float64.

    `nodes[1]` is the root, the children of node i are 2i and 2i + 1, and slot s is node `width + s`. Every call works
    on all its slots at once, level by level. A parent is recomputed from its children, not moved by a difference:
    slots may repeat in a call, and no rounding error builds up.
    """

    def __init__(self, capacity: int) -> None:
        self.width = _width(capacity)  # slots beyond the capacity stay 0
        self.nodes = np.zeros(2 * self.width)

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(self.nodes[1])

    @property
    def values(self) -> Array:
        """The value of every slot, as a view `[width]`."""
        return self.nodes[self.width :]

    def set(self, slots: Array, values: Array | float) -> None:
        """Give slots `[n]` new values; of a slot that repeats the last one counts."""
        nodes, level = self.width + slots, self.width
        self.nodes[nodes] = values
        while level > 1:
            level //= 2
            if level <= len(slots):  # all parents of this level, without looking for those that changed
                self.nodes[level : 2 * level] = self.nodes[2 * level : 4 * level].reshape(-1, 2).sum(1)
            else:
                nodes = nodes >> 1
                self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]

    def find(self, mass: Array) -> Array:
        """The slots in which the cumulated values exceed `mass` `[...]` in [0, total); never one whose value is 0."""
        node, mass = np.ones(mass.shape, np.int64), mass.copy()
        while node.size and node.flat[0] < self.width:  # all are on the same level
            node *= 2
            left = self.nodes[node]
            is_right = (mass >= left) & (self.nodes[node + 1] > 0)
            mass -= left * is_right
            node += is_right
        return node - self.width


def tree_bytes(capacity: int) -> int:
    """Bytes of a tree for so many slots."""
    return 2 * _width(capacity) * np.dtype(np.float64).itemsize


def _width(capacity: int) -> int:
    """The next power of two."""
    return 1 << (capacity - 1).bit_length()
