"""Which replay table: each sampler has its own options beside the common ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from drl_cli.utils.ranges import Count, Fraction, Natural, Positive


@dataclass(frozen=True)
class ReplayConfig:
    """The replay table, and all that uniform sampling needs."""

    sampler: Literal["uniform", "prioritized", "fifo-once", "sequences"]
    capacity: Count
    shards: Count | None

    @property
    def wants_priorities(self) -> bool:
        """Whether the trainer sends the rows' new priorities back."""
        return self.sampler == "prioritized"


@dataclass(frozen=True)
class PrioritizedConfig(ReplayConfig):
    """Options of prioritized sampling."""

    alpha: Fraction
    beta: Fraction
    eps: Positive
    uniform_mix: Fraction


@dataclass(frozen=True)
class FifoConfig(ReplayConfig):
    """Options of the queue that serves every row once."""

    shards: Literal[1]
    max_staleness: Natural


SAMPLERS: Mapping[str, type[ReplayConfig]] = {
    "uniform": ReplayConfig,
    "prioritized": PrioritizedConfig,
    "fifo-once": FifoConfig,
}
"""The class of a table's options, by `replay.sampler`."""
