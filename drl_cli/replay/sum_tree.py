"""Trees of partial sums, used to draw the slots of a table in proportion to their values."""

import math
from itertools import pairwise

import numpy as np

from drl_cli.replay.store import RingStore
from drl_cli.types import Array

FANOUT = 16
"""Number of children per node. 16 children fill two cache lines. Many children mean few levels, so few numpy calls."""
TOP = 4096
"""Maximum number of nodes in the highest level. The cumulative sums of this level are kept."""
FLOOR = 0.1
"""The smallest factor of a faded value (DR.Q, Lyu et al. 2026, arXiv 2605.11711)."""
CUMULATE = np.tri(FANOUT + 1, FANOUT, -1).T
"""A row of values times this matrix gives its cumulative sums, beginning with 0, several times as fast as cumsum."""


class SumTree:
    """Stores a value >= 0 for each slot, and partial sums of the values (Schaul et al. 2015, appendix B.2.1).

    `levels[0]` contains the values. In each higher level, node i is the sum of the nodes 16 i to 16 i + 15 of the level
    below. A call processes all its slots together, level by level. A sum is always computed from all children, not
    updated by a difference. Therefore slots may repeat in a call, and rounding errors do not accumulate.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.levels = [np.zeros(size) for size in _sizes(capacity)]  # slots beyond the capacity stay 0
        self._cumulated: Array | None = None
        self._peak, self._maximum = 0, 0.0  # the slot of the largest value, and the largest value

    @property
    def total(self) -> float:
        return float(self._cumulate()[-1])

    @property
    def maximum(self) -> float:
        """The largest value. All values are searched only if a smaller value has replaced the largest."""
        if self.levels[0][self._peak] != self._maximum:
            self._peak = int(self.levels[0].argmax())
            self._maximum = float(self.levels[0][self._peak])
        return self._maximum

    @property
    def values(self) -> Array:
        """The values of all slots as a view `[capacity]`."""
        return self.levels[0][: self.capacity]

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self.levels)

    def set(self, slots: Array, values: Array | float) -> None:
        """Set the values of slots `[n]`. If a slot repeats, its last value is used."""
        if len(slots) == 0:
            return
        self.levels[0][slots], self._cumulated, nodes = values, None, slots
        written = self.levels[0].take(slots)
        highest = written.argmax()
        if written[highest] >= self._maximum:
            self._peak, self._maximum = int(slots[highest]), float(written[highest])
        for below, above in pairwise(self.levels):
            children = below.reshape(-1, FANOUT)
            if len(children) <= len(slots):  # computing all sums of this level is faster
                above[: len(children)] = _sums(children)
            else:
                nodes = nodes // FANOUT
                above[nodes] = _sums(children.take(nodes, 0))

    def take(self, slots: Array) -> Array:
        """Return the values of slots `[...]`, to which their draws are proportional."""
        return self.levels[0].take(slots)

    def find(self, mass: Array) -> Array:
        """Return, for each `mass` `[...]` in [0, total), the first slot whose cumulative sum exceeds the mass.

        A slot with value 0 is never returned.
        """
        cumulated = self._cumulate()
        rest = np.minimum(mass.ravel(), np.nextafter(cumulated[-1], 0.0))
        nodes = cumulated[1:].searchsorted(rest, "right")
        rest -= cumulated.take(nodes)
        for level in self.levels[-2::-1]:
            cumulated = level.reshape(-1, FANOUT).take(nodes, 0) @ CUMULATE
            np.minimum(rest, np.nextafter(cumulated[:, -1], 0.0), out=rest)  # rounding can move `rest` beyond the end
            child = (cumulated[:, 1:] > rest[:, None]).argmax(1)
            rest -= cumulated.take(np.arange(0, cumulated.size, FANOUT + 1) + child)
            nodes = nodes * FANOUT + child
        slots: Array = nodes.reshape(mass.shape)
        return slots

    def _cumulate(self) -> Array:
        """Return the cumulative sums of the highest level, beginning with 0."""
        if self._cumulated is None:
            self._cumulated = np.concatenate([[0.0], self.levels[-1].cumsum()])
        return self._cumulated


class FadedTree(SumTree):
    """Draws slots in proportion to value * max(FLOOR, age_factor^age), with 0 < age_factor < 1.

    The age of a row is the number of rows that `store` inserted after it. Every insert changes all faded values, so the
    tree contains values without factors. A faded value has two parts: FLOOR * value, and the rest, which is 0 except
    for the newest rows. A mass below the sum of the first parts is found by the tree, and any other mass by cumulative
    sums over the newest rows.
    """

    def __init__(self, store: RingStore, age_factor: float) -> None:
        super().__init__(store.capacity)
        self.store, self.age_factor = store, age_factor
        ages = np.arange(_num_newest(store.capacity, age_factor))
        self.rest = np.maximum(age_factor**ages - FLOOR, 0.0)  # of the newest rows, by age
        self._cumulated_rest: Array | None = None

    @property
    def total(self) -> float:
        return FLOOR * super().total + float(self._cumulate_rest()[-1])

    @property
    def nbytes(self) -> int:
        return super().nbytes + 2 * int(self.rest.nbytes)

    def set(self, slots: Array, values: Array | float) -> None:
        super().set(slots, values)
        self._cumulated_rest = None

    def find(self, mass: Array) -> Array:
        old, rest = FLOOR * super().total, self._cumulate_rest()
        slots = super().find(mass / FLOOR)
        is_new = mass >= old
        new = np.minimum(mass[is_new] - old, np.nextafter(rest[-1], 0.0))  # rounding can move `mass` beyond the end
        slots[is_new] = self._slots(rest[1:].searchsorted(new, "right"))
        return slots

    def take(self, slots: Array) -> Array:
        age = (self.store.inserts - 1 - slots) % self.capacity
        faded: Array = super().take(slots) * np.maximum(self.age_factor**age, FLOOR)
        return faded

    def _slots(self, age: Array) -> Array:
        """Return the slots of the rows with these ages."""
        return (self.store.inserts - 1 - age) % self.capacity

    def _cumulate_rest(self) -> Array:
        """Return the cumulative sums of the second parts, beginning with 0 and the newest row."""
        if self._cumulated_rest is None:
            slots = self._slots(np.arange(min(len(self.rest), len(self.store))))
            parts = super().take(slots) * self.rest[: len(slots)]
            self._cumulated_rest = np.concatenate([[0.0], parts.cumsum()])
        return self._cumulated_rest


def tree_bytes(capacity: int) -> int:
    """Return the size in bytes of a tree for `capacity` slots."""
    return sum(_sizes(capacity)) * np.dtype(np.float64).itemsize


def faded_tree_bytes(capacity: int, age_factor: float) -> int:
    """Return the size in bytes of a FadedTree for `capacity` slots, its sums over the newest rows included."""
    return tree_bytes(capacity) + 16 * _num_newest(capacity, age_factor)


def _sizes(capacity: int) -> list[int]:
    """Return the number of nodes of each level, a multiple of FANOUT. The highest level has at most TOP nodes."""
    sizes = [-(-capacity // FANOUT) * FANOUT]
    while sizes[-1] > TOP:
        sizes.append(-(-sizes[-1] // FANOUT**2) * FANOUT)
    return sizes


def _sums(children: Array) -> Array:
    """Return the sum of each row. `einsum` takes a third of the time of `np.sum`."""
    sums: Array = np.einsum("ij->i", children)
    return sums


def _num_newest(capacity: int, age_factor: float) -> int:
    """Return the number of rows whose factor is above FLOOR if the table is full."""
    return min(capacity, math.ceil(math.log(FLOOR) / math.log(age_factor)))
