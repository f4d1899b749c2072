"""Samplers choose the rows of batches. SumTree draws them in proportion to their priorities."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from drl_cli.replay.store import RingStore
from drl_cli.types import Array, Columns, State
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object
from drl_cli.utils.seeding import rng_state, set_rng_state

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
        return (self.store.inserts - 1 - age) % self.capacity

    def _cumulate_rest(self) -> Array:
        """Return the cumulative sums of the second parts, beginning with 0 and the newest row."""
        if self._cumulated_rest is None:
            slots = self._slots(np.arange(min(len(self.rest), len(self.store))))
            parts = super().take(slots) * self.rest[: len(slots)]
            self._cumulated_rest = np.concatenate([[0.0], parts.cumsum()])
        return self._cumulated_rest


def tree_bytes(capacity: int) -> int:
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


class Sampler(ABC):
    """Draws slots of a store. `insert` and `update` inform the sampler about new rows and new priorities."""

    nbytes = 0

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    @abstractmethod
    def sample(self, size: int, num_batches: int, batch_size: int) -> tuple[Array, Array | None]:
        """Draw batches from the first `size` slots.

        Return slots `[num_batches, batch_size]` and importance weights of the same shape, float32. The weights are None
        if all rows are equally probable.
        """

    def insert(self, slots: Array, priorities: Array | None = None) -> None:
        """Register new rows in slots `[rows]`, with initial priorities `[rows]` if the worker computed them."""

    def update(self, slots: Array, priorities: Array) -> None:
        """Set the priorities `[rows]` of sampled rows. If a slot repeats, its last priority is used."""

    def change(self, columns: Columns) -> Columns:
        """Return the columns of sampled batches `[num_batches, batch_size, ...]`, for example with other goals."""
        return columns

    def stats(self) -> Mapping[str, float]:
        return {}

    def state(self) -> State:
        """Return everything that is needed to continue the same sequence of draws."""
        return {"rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        """Restore the `state()` of a sampler for the same number of slots."""
        set_rng_state(self.rng, state["rng"])


class Uniform(Sampler):
    """Draws every row with the same probability, with replacement."""

    def sample(self, size: int, num_batches: int, batch_size: int) -> tuple[Array, Array | None]:
        return self.rng.integers(0, size, (num_batches, batch_size)), None


class Prioritized(Sampler):
    """Draws rows in proportion to (priority + eps)^alpha, with replacement (Schaul et al. 2015, arXiv 1511.05952).

    Draws are stratified: the total priority is divided into `batch_size` equal intervals, and each interval gives one
    draw of a batch. With probability `uniform_mix`, a draw is uniform instead. If a row among N rows has
    probability P under this mixture, its importance weight is (N P)^-beta, divided by the largest weight of its batch
    (section 3.4). Beta rises linearly from `replay.beta` to 1 over `num_batches` batches.

    A new row has the priority computed by the worker (Horgan et al. 2018, "Distributed Prioritized Experience Replay"),
    or else the largest priority that is now in the table. Schaul et al. use the largest priority ever seen instead;
    then, after a single outlier, all later rows would get too large a priority.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        num_rows: int,
        num_batches: int,
        alpha: float,
        beta: float,
        eps: float,
        uniform_mix: float,
        tree: SumTree | None = None,
    ) -> None:
        super().__init__(rng)
        self.num_batches, self.alpha, self.first_beta, self.eps = num_batches, alpha, beta, eps
        self.uniform_mix = uniform_mix
        self.tree = tree or SumTree(num_rows)
        self.nbytes = self.tree.nbytes
        self.largest = 1.0
        self.drawn = 0
        self.bad = 0

    def insert(self, slots: Array, priorities: Array | None = None) -> None:
        self.largest = self.tree.maximum or self.largest
        if priorities is None:
            self.tree.set(slots, self.largest)
        else:
            self.update(slots, priorities)

    def sample(self, size: int, num_batches: int, batch_size: int) -> tuple[Array, Array | None]:
        shape, total, mix = (num_batches, batch_size), self.tree.total, self.uniform_mix
        mass = (np.arange(batch_size) + self.rng.random(shape)) / batch_size * total
        slots = self.tree.find(mass)
        if mix:
            slots = np.where(self.rng.random(shape) < mix, self.rng.integers(0, size, shape), slots)
        probability = (1.0 - mix) * self.tree.take(slots) / total + mix / size
        beta = self.beta(self.drawn + np.arange(num_batches))
        self.drawn += num_batches
        weights = (size * probability) ** -beta[:, None]
        return slots, (weights / weights.max(1, keepdims=True)).astype(np.float32)

    def beta(self, batch: Array) -> Array:
        """Return beta for the batches with these numbers, counted from 0. Beta is 1 from batch `num_batches - 1` on."""
        done = np.minimum(1.0, batch / max(1, self.num_batches - 1))
        return 1.0 - (1.0 - self.first_beta) * (1.0 - done)

    def update(self, slots: Array, priorities: Array) -> None:
        """Set priorities. A priority that is negative or not finite is set to 0 and counted in `bad`."""
        is_good = np.isfinite(priorities) & (priorities >= 0)
        self.bad += int((~is_good).sum())
        values = np.where(is_good, priorities, 0.0).astype(np.float64) + self.eps
        self.tree.set(slots, values**self.alpha)

    def stats(self) -> Mapping[str, float]:
        beta = float(self.beta(np.array(self.drawn - 1)))
        return {"bad_priorities": self.bad, "max_priority": self.largest, "beta": beta}

    def state(self) -> State:
        counts = {name: np.array(getattr(self, name)) for name in ("largest", "drawn", "bad")}
        return super().state() | counts | {"values": self.tree.values.copy()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.tree.set(np.arange(self.tree.capacity), state["values"])
        self.largest, self.drawn, self.bad = (state[name].item() for name in ("largest", "drawn", "bad"))


def sampler_problems(path: str, has_options: bool) -> Iterator[str]:
    """Yield a line for each reason why `path` is not a sampler of the user. Its constructor takes only `rng`."""
    if has_options:
        yield f"replay.sampler={path}: your own sampler has no options; say replay=uniform"
    try:
        kind = import_object(path)
    except (NotFound, ModuleRaised) as error:
        yield f"replay.sampler={path}: {error}"
        return
    if not (isinstance(kind, type) and issubclass(kind, Sampler)):
        yield f"replay.sampler={path} must be a class derived from drl_cli.replay.samplers.Sampler"
