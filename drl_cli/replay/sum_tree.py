"""A tree of partial sums over the slots of a table: draws slots in proportion to their values."""

from itertools import pairwise

import numpy as np

from drl_cli.types import Array

FANOUT = 16
"""Children of a node: two cache lines, and few levels, each of which costs the same calls of numpy."""
TOP = 4096
"""Most nodes of the highest level, over which the sums are cumulated."""
CUMULATE = np.tri(FANOUT + 1, FANOUT, -1).T
"""What a row of values is multiplied by to be cumulated, from 0 on: several times as fast as cumsum."""


class SumTree:
    """Values >= 0 by slot, all 0 at first (Schaul et al. 2015, appendix B.2.1); float64.

    `levels[0]` are the values, node i of a level is the sum of nodes 16 i to 16 i + 15 of the level below. Every call
    works on all its slots at once, level by level. A sum is made anew from its children, not moved by a difference:
    slots may repeat in a call, and no rounding error builds up.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.levels = [np.zeros(size) for size in _sizes(capacity)]  # slots beyond the capacity stay 0
        self._cumulated: Array | None = None
        self._peak, self._maximum = 0, 0.0  # no value is above that; slot `_peak` had it

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(self._cumulate()[-1])

    @property
    def maximum(self) -> float:
        """The largest value; all are looked at only where the slot that had it has got a smaller one since."""
        if self.levels[0][self._peak] != self._maximum:
            self._peak = int(self.levels[0].argmax())
            self._maximum = float(self.levels[0][self._peak])
        return self._maximum

    @property
    def values(self) -> Array:
        """The value of every slot, as a view `[capacity]`."""
        return self.levels[0][: self.capacity]

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return sum(level.nbytes for level in self.levels)

    def set(self, slots: Array, values: Array | float) -> None:
        """Give slots `[n]` new values; of a slot that repeats the last one counts."""
        if len(slots) == 0:
            return
        self.levels[0][slots], self._cumulated, nodes = values, None, slots
        written = self.levels[0].take(slots)
        highest = written.argmax()
        if written[highest] >= self._maximum:
            self._peak, self._maximum = int(slots[highest]), float(written[highest])
        for below, above in pairwise(self.levels):
            children = below.reshape(-1, FANOUT)
            if len(children) <= len(slots):  # all sums of this level, without looking for those that changed
                above[: len(children)] = _sums(children)
            else:
                nodes = nodes // FANOUT
                above[nodes] = _sums(children.take(nodes, 0))

    def find(self, mass: Array) -> Array:
        """The slots in which the cumulated values exceed `mass` `[...]` in [0, total); never one whose value is 0."""
        cumulated = self._cumulate()
        rest = np.minimum(mass.ravel(), np.nextafter(cumulated[-1], 0.0))
        nodes = cumulated[1:].searchsorted(rest, "right")
        rest -= cumulated.take(nodes)
        for level in self.levels[-2::-1]:
            cumulated = level.reshape(-1, FANOUT).take(nodes, 0) @ CUMULATE
            np.minimum(rest, np.nextafter(cumulated[:, -1], 0.0), out=rest)  # rounding may have put it at the end
            child = (cumulated[:, 1:] > rest[:, None]).argmax(1)
            rest -= cumulated.take(np.arange(0, cumulated.size, FANOUT + 1) + child)
            nodes = nodes * FANOUT + child
        slots: Array = nodes.reshape(mass.shape)
        return slots

    def _cumulate(self) -> Array:
        """0 and the cumulated sums of the highest level."""
        if self._cumulated is None:
            self._cumulated = np.concatenate([[0.0], self.levels[-1].cumsum()])
        return self._cumulated


def tree_bytes(capacity: int) -> int:
    """Bytes of a tree for so many slots."""
    return sum(_sizes(capacity)) * np.dtype(np.float64).itemsize


def _sizes(capacity: int) -> list[int]:
    """Nodes by level: whole families, up to a level of at most TOP."""
    sizes = [-(-capacity // FANOUT) * FANOUT]
    while sizes[-1] > TOP:
        sizes.append(-(-sizes[-1] // FANOUT**2) * FANOUT)
    return sizes


def _sums(children: Array) -> Array:
    """Of each row; `einsum` takes a third of the time of `sum`."""
    sums: Array = np.einsum("ij->i", children)
    return sums
