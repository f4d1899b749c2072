"""The config of the replay table. Each sampler adds its own options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from drl_cli.utils.ranges import Count, Fraction, Natural, Positive

MOST_TRANSITIONS = 1_000_000
"""Capacity with `replay.capacity=null`, unless fewer transitions fit in memory."""


@dataclass(frozen=True)
class ReplayConfig:
    """Options of every replay table."""

    sampler: Literal["uniform", "prioritized", "fifo-once", "sequences"]
    capacity: Count | None
    shards: Count | None

    @property
    def num_transitions(self) -> int:
        """Capacity in transitions; preflight replaces null by a number that fits in memory."""
        return self.capacity or MOST_TRANSITIONS

    @property
    def num_rows(self) -> int:
        """Capacity in rows. A row is one transition, except in SequencesConfig."""
        return self.num_transitions


@dataclass(frozen=True)
class UniformConfig(ReplayConfig):
    """Options of tables whose rows can be sampled any number of times."""

    remover: Literal["oldest", "random"]
    compress: Literal["none", "lz4"]


@dataclass(frozen=True)
class PrioritizedConfig(UniformConfig):
    """Options of prioritized sampling."""

    initial_priority: Literal["max", "worker"]
    alpha: Fraction
    beta: Fraction
    eps: Positive
    uniform_mix: Fraction


@dataclass(frozen=True)
class SequencesConfig(PrioritizedConfig):
    """Options of sequences. A row has `burn_in + seq_len` steps, and rows begin `seq_len - overlap` steps apart."""

    seq_len: Count
    burn_in: Natural
    overlap: Natural
    eta: Fraction

    @property
    def length(self) -> int:
        """Number of steps per row."""
        return self.burn_in + self.seq_len

    @property
    def num_rows(self) -> int:
        """Capacity in rows, enough for `capacity` transitions if episodes are long."""
        return self.num_transitions // (self.seq_len - self.overlap)


@dataclass(frozen=True)
class FifoConfig(ReplayConfig):
    """Options of the queue that returns each row once."""

    capacity: Count
    shards: Literal[1]
    max_staleness: Natural


SAMPLERS: Mapping[str, type[ReplayConfig]] = {
    "uniform": UniformConfig,
    "prioritized": PrioritizedConfig,
    "sequences": SequencesConfig,
    "fifo-once": FifoConfig,
}
"""The config class for each value of `replay.sampler`."""
