"""Which replay table: each sampler has its own options beside the common ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from drl_cli.utils.ranges import Count, Fraction, Natural, Positive


@dataclass(frozen=True)
class ReplayConfig:
    """What every replay table has."""

    sampler: Literal["uniform", "prioritized", "fifo-once", "sequences"]
    capacity: Count
    shards: Count | None

    @property
    def holds_frames(self) -> bool:
        """Whether the table holds each frame of an image once."""
        return self.sampler != "fifo-once"

    @property
    def wants_priorities(self) -> bool:
        """Whether the trainer sends the rows' new priorities back."""
        return self.sampler in ("prioritized", "sequences")

    @property
    def num_rows(self) -> int:
        """Rows that the table has room for: one per transition."""
        return self.capacity


@dataclass(frozen=True)
class UniformConfig(ReplayConfig):
    """Options of tables whose rows are drawn any number of times."""

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
    """Options of sequences: a row covers `burn_in + seq_len` steps, the next begins `seq_len - overlap` later."""

    seq_len: Count
    burn_in: Natural
    overlap: Natural
    eta: Fraction

    @property
    def length(self) -> int:
        """Steps of a row."""
        return self.burn_in + self.seq_len

    @property
    def num_rows(self) -> int:
        """As many as hold `capacity` transitions of long episodes; the last row of each may be shorter."""
        return self.capacity // (self.seq_len - self.overlap)


@dataclass(frozen=True)
class FifoConfig(ReplayConfig):
    """Options of the queue that serves every row once."""

    shards: Literal[1]
    max_staleness: Natural


SAMPLERS: Mapping[str, type[ReplayConfig]] = {
    "uniform": UniformConfig,
    "prioritized": PrioritizedConfig,
    "sequences": SequencesConfig,
    "fifo-once": FifoConfig,
}
"""The class of a table's options, by `replay.sampler`."""
