"""FifoConfig: the options of the queue for on-policy learning."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from drl_cli.replay.base import Load, Table
from drl_cli.replay.base_config import NO_UPDATE, ReplayConfig
from drl_cli.replay.builders import Builder, Prioritize, RolloutBuilder
from drl_cli.replay.fifo import FifoOnce
from drl_cli.types import Schema
from drl_cli.utils.ranges import Count, Natural


@dataclass(frozen=True)
class FifoConfig(ReplayConfig):
    """Options of the queue that returns each row once."""

    capacity: Count
    shards: Literal[1]
    max_staleness: Natural

    shares_frames = True

    @property
    def frame_codec(self) -> str:
        return "none"

    @property
    def versions_ahead(self) -> int:
        return max(1, self.max_staleness)

    def problems(self, load: Load) -> Iterator[str]:
        """Yield a line for each option with which the queue never fills a batch, or loses transitions."""
        batch, ahead = load.batch_size, self.versions_ahead
        if self.max_staleness == 0 and load.is_async:
            yield (
                "replay.max_staleness=0 can't be kept in mode=async, whose workers collect while the trainer learns: "
                "all they collect would be dropped; say replay.max_staleness=1 or mode=sync"
            )
        if load.block_rows > ahead * batch and load.is_async:
            yield (
                f"a block of {load.block_rows} transitions is more than replay.max_staleness {ahead} x "
                f"trainer.batch_size {batch}: in mode=async its last ones would be too old; lower worker.block_rows or "
                "say mode=sync"
            )
        if load.total_env_steps < batch:
            yield f"total_env_steps={load.total_env_steps} is below trainer.batch_size={batch}: {NO_UPDATE}"
        if self.capacity < (needed := ahead * batch + load.collected):
            yield (
                f"replay.capacity={self.capacity} is below {needed} = {ahead} x trainer.batch_size {batch} that may "
                f"wait + {load.collected} transitions of one collect of all workers: some would be lost"
            )

    def make_table(
        self,
        schema: Schema,
        rng: np.random.Generator,
        num_batches: int,
        most_inserts: int | None = None,
        gamma: float = 1.0,
    ) -> Table:
        return FifoOnce(schema, self.capacity, self.max_staleness, most_inserts)

    def make_builder(
        self, n_step: int, gamma: float, reward_scale: float = 1.0, prioritize: Prioritize | None = None
    ) -> tuple[Builder, int]:
        return RolloutBuilder(gamma, reward_scale), 0

    def extra_columns(self) -> Schema:
        return RolloutBuilder.extra_columns
