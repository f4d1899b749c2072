"""What collect.py and updates.py measure: a worker beside a bare loop, and a trainer with a full replay table."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.config.config import Config
from drl_cli.envs.actions import ActionMap
from drl_cli.envs.atari import make_vector
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.envpool_tasks import find_task, make_pool
from drl_cli.envs.make import build
from drl_cli.envs.stepping.ale_batch import AleBatch
from drl_cli.runtime.factories import make_replay
from drl_cli.runtime.messages import BatchTrainingData, InsertTransition, SampleBatch
from drl_cli.runtime.roles.normalization import numpy_program
from drl_cli.runtime.roles.worker import Worker
from drl_cli.runtime.trial_update import lone_trainer
from drl_cli.types import Array, Columns, EnvSpec, LoadParams
from drl_cli.utils.lazy import torch
from drl_cli.utils.seeding import integers


@dataclass(frozen=True)
class Rate:
    """Items processed per second of wall-clock time, and per second of this process's CPU time."""

    per_s: float
    per_cpu_s: float


def timed(work: Callable[[], int]) -> Rate:
    """Return the rate of one call of `work`, which returns the number of processed items."""
    started, used = time.perf_counter(), time.process_time()
    done = work()
    return Rate(done / (time.perf_counter() - started), done / max(1e-9, time.process_time() - used))


class Collecting:
    """A worker, and separate environments in which a plain loop repeats the worker's actions."""

    def __init__(self, config: Config, spec: EnvSpec, params_header: LoadParams, params: Array) -> None:
        self.params_header, self.rows = params_header, config.rows_per_collect
        self.worker = Worker(config, spec, 0, 0, numpy_program(config, spec)[0])
        self.actions: list[Array] = []
        seeds = integers(config.seed, "worker", config.worker.envs, 0, 0)
        self.bare: BareEnvs | BarePool | BareVector
        if isinstance(self.worker.envs, AleBatch):
            self.bare = BareVector(config.env, seeds, self.worker.envs.num_threads)
        else:
            self.bare = (BarePool if config.env.backend == "envpool" else BareEnvs)(config.env, seeds)
        step = self.worker.envs.step

        def recorded(actions: Array) -> Any:
            self.actions.append(actions)
            return step(actions)

        self.worker.envs.step = recorded  # type: ignore[method-assign]  # recording costs too little to measure
        self.worker.collect(params_header, params)

    def by_worker(self, collects: int) -> Rate:
        """Return the rate of environment steps over `collects` collect calls."""

        def work() -> int:
            for _ in range(collects):
                self.worker.collect(self.params_header)
            return collects * self.rows

        return timed(work)

    def by_bare_loop(self) -> Rate:
        """Return the rate of a plain loop that repeats the worker's steps since the last call, including resets."""
        taken, self.actions = [self.bare.to_env(actions) for actions in self.actions], []

        def work() -> int:
            for actions in taken:
                self.bare.step(actions)
            return len(taken) * self.worker.config.worker.envs

        return timed(work)

    def close(self) -> None:
        self.worker.close()
        self.bare.close()


class BareEnvs:
    """Gymnasium environments. `step` makes one step in each, and resets those whose episode has ended."""

    def __init__(self, config: EnvConfig, seeds: Sequence[int]) -> None:
        self.envs: list[Any] = [build(config) for _ in seeds]  # Any: environments with any spaces
        self.to_env = ActionMap(self.envs[0].action_space).convert
        for env, seed in zip(self.envs, seeds, strict=True):
            env.reset(seed=seed)

    def step(self, actions: Any) -> None:  # Any: an action of the space
        for env, action in zip(self.envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    def close(self) -> None:
        for env in self.envs:
            env.close()


class BarePool:
    """The environments of an EnvPool. `step` makes one step in each, and resets those whose episode has ended."""

    def __init__(self, config: EnvConfig, seeds: Sequence[int]) -> None:
        task = find_task(config)
        self.to_env, self.pool = ActionMap(task.action_space).convert, make_pool(task, seeds)
        self.pool.reset()

    def step(self, actions: Any) -> None:
        _, _, terminated, truncated, _ = self.pool.step(np.asarray(actions))
        if (over := terminated | truncated).any():
            self.pool.reset(over.nonzero()[0].astype(np.int32))

    def close(self) -> None:
        self.pool.close()


class BareVector:
    """ale-py's vector environment. `step` makes one step in each game, and resets those whose episode has ended."""

    def __init__(self, config: EnvConfig, seeds: Sequence[int], num_threads: int) -> None:
        game: Any = build(config).unwrapped
        self.to_env, self.vector = ActionMap(game.action_space).convert, make_vector(game, len(seeds), num_threads)
        self.vector.reset(seed=np.array(seeds))

    def step(self, actions: Any) -> None:
        _, _, terminated, truncated, _ = self.vector.step(np.array(actions))
        if (over := terminated | truncated).any():
            self.vector.reset(options={"reset_mask": over})

    def close(self) -> None:
        self.vector.close()


NUM_BLOCKS = 8


class Replaying:
    """A shard of the replay table. A few blocks of a worker are inserted repeatedly until the shard is full."""

    def __init__(self, config: Config, spec: EnvSpec, params_header: LoadParams, params: Array, seconds: float) -> None:
        self.config = config
        self.replay = make_replay(config, spec, 0)
        self.blocks = collected(config, spec, params_header, params, seconds)
        self.number = 0
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
        self.replay.insert([header], columns)
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


class Updating:
    """A trainer, and the replay table from which it learns."""

    def __init__(self, replaying: Replaying, spec: EnvSpec, threads: int) -> None:
        torch.set_num_threads(threads)
        self.replaying, self.trainer = replaying, lone_trainer(replaying.config, spec, threads)

    def train(self) -> int:
        """Draw batches and train on them. Return the number of gradient updates."""
        report, priorities = self.trainer.train(*self.replaying.draw(self.replaying.config.updates_per_call))
        if priorities is not None:
            self.replaying.replay.update_priorities(priorities)
        return report.num_updates
