"""`trainer.threads=auto`: how many processor threads an update is worth, by a rule or by a measurement.

A run's number is chosen once and is in its config.yaml from then on, since sums in float32 depend on it. Where equal
seeds have to give equal weights it follows from the config and the number of cores alone.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context

import numpy as np

from drl_cli.runtime.config import Config
from drl_cli.runtime.messages import BatchTrainingData, Block, InsertTransition, SampleBatch
from drl_cli.runtime.program import make_replay, make_trainer
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.runtime.roles.worker import make_builder
from drl_cli.types import Array, Columns, EnvSpec, Last, flat_columns, num_rows, random_obs, sources
from drl_cli.utils.lazy import torch

SECONDS = 0.8
"""What a measurement may take, one round beyond."""
WORTH = 0.9
"""More threads are worth it when they take at most this share of the time; others have a use for the cores, too."""
PRODUCT = 2**26
"""Multiplications in the widest product of an update that are worth a thread: a millisecond and a half of one core."""


def choose_threads(config: Config, spec: EnvSpec, cores: int) -> tuple[Config, Mapping[int, float]]:
    """The config with a number for `auto`, and the seconds of an update that were measured, by number of threads."""
    if config.trainer.threads != "auto":
        return config, {}
    free, seconds = free_cores(config, cores), dict[int, float]()
    if config.is_repeatable or free == 1:
        threads = by_rule(config.trainer.batch_size // config.trainer.num, config.network.hidden, free)
    else:
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # without torch in this process
            seconds = other.submit(measure, config, spec, candidates(free)).result()
        threads = fewest(seconds)
    return replace(config, trainer=replace(config.trainer, threads=threads)), seconds


def free_cores(config: Config, cores: int) -> int:
    """Cores for each trainer: in mode=async beside the workers, elsewhere these stand still meanwhile; at least one."""
    busy = config.num_workers if config.mode == "async" else 0
    return max(1, (cores - busy) // config.trainer.num)


def by_rule(batch_size: int, hidden: Sequence[int], free: int) -> int:
    """One thread for every `PRODUCT` of the widest product, at most the free cores."""
    width = max((a * b for a, b in pairwise(hidden)), default=1)
    return max(1, min(free, batch_size * width // PRODUCT))


def candidates(free: int) -> list[int]:
    """Powers of two up to the free cores, and these."""
    return sorted({2**i for i in range(free.bit_length())} | {free})


def fewest(seconds: Mapping[int, float]) -> int:
    """Of these numbers of threads, the smallest that none beyond it beats by enough."""
    best = min(seconds)
    for threads in sorted(seconds):
        if seconds[threads] <= WORTH * seconds[best]:
            best = threads
    return best


def alone(config: Config, threads: int) -> Config:
    """A run whose one trainer does what each of several does: without averaging, on its share of every batch."""
    share = max(1, config.trainer.batch_size // config.trainer.num)
    return replace(config, trainer=replace(config.trainer, num=1, batch_size=share, threads=threads))


def measure(config: Config, spec: EnvSpec, counts: Sequence[int]) -> dict[int, float]:
    """Least seconds of an update by number of threads, taken in turn; on a device nothing is measured but the first.

    The trainer and its batch are like the run's, but none of it comes into the run.
    """
    config = replace(alone(config, threads=1), load_weights=None)
    trainer = make_trainer(config, spec, config.device, 0)
    counts = counts[:1] if trainer.device.type != "cpu" else counts
    _, params = trainer.publish(0, 0)
    header, columns = random_batch(config, spec, params)
    seconds = dict.fromkeys(counts, float("inf"))
    started = time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        for threads in counts:
            torch.set_num_threads(threads)
            report, _ = trainer.train(header, columns)
            seconds[threads] = min(seconds[threads], report.seconds / max(1, report.num_updates))
    return seconds


def random_batch(config: Config, spec: EnvSpec, params: Array) -> tuple[BatchTrainingData, Columns]:
    """A batch as this run's replay gives it, of random observations, actions and rewards."""
    size, num = config.trainer.batch_size, config.worker.envs
    table = replace(config.replay, capacity=config.row_steps * (2 * size + num), shards=1)
    replay = make_replay(replace(config, replay=table), spec, 0)
    policy, rng = make_policy(config, spec, 0), np.random.default_rng(0)
    policy.load(params)
    builder, number, last = make_builder(config, spec, policy, 0, 0), 0, Last.none(spec, num)
    while len(replay.table) < size:
        obs, next_obs = (random_obs(spec.obs, num, rng) for _ in range(2))
        reward, never = rng.standard_normal(num, np.float32), np.zeros(num, np.bool_)
        step = {**flat_columns("obs", obs), **policy.random(obs, last), **flat_columns("next_obs", next_obs)}
        step |= {"reward": reward, "source": sources(0, num), "terminated": never, "truncated": never, "valid": ~never}
        builder.append(step)
        rows = builder.take()
        replay.insert(InsertTransition((Block(0, 0, number, num_rows(rows), 0, 0, 0, 0),), (), 0.0), rows)
        number += 1
    header, columns = replay.sample(SampleBatch(1, size))
    assert isinstance(header, BatchTrainingData)
    assert not isinstance(columns, BatchTrainingData)
    return header, columns
