"""Which replay table: each sampler has its own options beside the common ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from drl_cli.utils.ranges import Count, Fraction, Positive


@dataclass(frozen=True)
class ReplayConfig:
    """The replay table, and all that uniform sampling needs."""

    sampler: Literal["uniform", "prioritized", "fifo-once", "sequences"]
    capacity: Count
    shards: Count | None
    compress: Literal["none", "lz4"] = field(default="none", kw_only=True)

    @property
    def holds_frames(self) -> bool:
        """Whether the table can hold each frame of an image once."""
        return self.sampler in ("uniform", "prioritized")

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


SAMPLERS: Mapping[str, type[ReplayConfig]] = {"uniform": ReplayConfig, "prioritized": PrioritizedConfig}
"""The class of a table's options, by `replay.sampler`."""
