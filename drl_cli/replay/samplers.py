"""Which rows of the store make a batch."""

from typing import Protocol

import numpy as np

from drl_cli.types import Array


class Sampler(Protocol):
    """Chooses slots."""

    def sample(self, size: int, num_batches: int, batch_size: int) -> Array:
        """Slots `[num_batches, batch_size]` among the first `size`."""


class Uniform:
    """Every stored row with the same probability, with replacement."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def sample(self, size: int, num_batches: int, batch_size: int) -> Array:
        return self.rng.integers(0, size, (num_batches, batch_size))
