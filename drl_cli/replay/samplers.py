"""Samplers choose the rows of batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np

from drl_cli.replay.sum_tree import SumTree
from drl_cli.types import Array, Columns, State
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object
from drl_cli.utils.seeding import rng_state, set_rng_state


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
