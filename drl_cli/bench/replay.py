"""Measure how fast transitions are inserted into the run's replay table and batches are drawn from the table."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import numpy as np

from drl_cli.bench.figures import ROUNDS, Rate, in_turn, timed
from drl_cli.runtime.config import Config
from drl_cli.runtime.factories import make_replay
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, LoadParams, SampleBatch, UpdatePriority
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import Array, Columns, EnvSpec

NUM_BLOCKS = 8


class Replaying:
    """A shard of the replay table. A few blocks of a worker are inserted repeatedly until the shard is full."""

    def __init__(self, config: Config, spec: EnvSpec, params_header: LoadParams, params: Array, seconds: float) -> None:
        self.config = config
        self.replay = make_replay(config, spec, 0)
        self.blocks = collected(config, spec, params_header, params, seconds)
        self.number = 0
        self.priorities = np.zeros(0, np.float32)
        started = time.perf_counter()
        if not config.is_on_policy:
            while not self.is_full and time.perf_counter() - started < max(1.0, seconds):
                self.insert()

    @property
    def is_full(self) -> bool:
        return len(self.replay.table) >= self.config.replay.num_rows // self.config.num_shards

    def insert(self) -> int:
        """Insert one more block. Return its number of transitions."""
        header, columns = self.blocks[self.number % len(self.blocks)]
        self.number += 1
        self.replay.last_block.clear()  # the table refuses a block that was inserted before
        self.replay.insert(header, columns)
        return header.rows

    def draw(self, num_batches: int) -> tuple[BatchTrainingData, Columns]:
        """Draw batches for one trainer. If the table is a queue, first insert enough blocks."""
        size = self.config.trainer.batch_size
        while self.config.is_on_policy and len(self.replay.table) < num_batches * size:
            self.insert()
        header, columns = self.replay.sample(SampleBatch(num_batches, size))
        assert isinstance(header, BatchTrainingData)
        assert isinstance(columns, dict)
        return header, columns

    def serve(self, num_batches: int) -> int:
        """Draw batches, and update their priorities if the table has any. Return the number of batches."""
        header, _ = self.draw(num_batches)
        if header.row_ids is not None:
            shape, row_steps = header.row_ids.shape[:2], self.config.replay.steps
            steps = (row_steps.seq_len,) if row_steps else ()
            if self.priorities.shape != (*shape, *steps):
                self.priorities = np.random.default_rng(0).exponential(size=(*shape, *steps)).astype(np.float32)
            self.replay.update_priorities(UpdatePriority(0, header.row_ids, self.priorities))
        return header.num_batches


def collected(
    config: Config, spec: EnvSpec, params_header: LoadParams, params: Array, seconds: float
) -> Sequence[tuple[InsertTransition, Columns]]:
    """Collect a few blocks with a real worker. At least one block has rows."""
    blocks: list[tuple[InsertTransition, Columns]] = []
    with closing(Worker(config, spec, 0, 0)) as worker:
        started, block = time.perf_counter(), worker.collect(params_header, params)
        while not blocks or (len(blocks) < NUM_BLOCKS and time.perf_counter() - started < seconds):
            block = worker.collect(params_header)
            blocks += [block] if block[0].rows else []
    return blocks


def measure(replaying: Replaying, seconds: float) -> Mapping[str, Sequence[Rate]]:
    """Measure "insert" (transitions/s) and "draw" (batches/s). For a queue, only measure "draw", which inserts too."""
    per_call, each = replaying.config.updates_per_call, seconds / ROUNDS
    plays: dict[str, Callable[[], Rate]] = {"draw": lambda: timed(lambda: replaying.serve(per_call), each)}
    if not replaying.config.is_on_policy:
        plays = {"insert": lambda: timed(replaying.insert, each), **plays}
    replaying.serve(per_call)
    return in_turn(plays)
