"""Make an update and choose actions on random data, to try the algorithm without a run."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.algos.lookup import load_algorithm
from drl_cli.config.config import Config
from drl_cli.config.exploration import worker_values
from drl_cli.config.rows import most_open_steps
from drl_cli.runtime.factories import make_replay, make_trainer
from drl_cli.runtime.messages import BatchTrainingData, Block, InsertTransition, SampleBatch
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.runtime.roles.worker import make_builder
from drl_cli.types import Array, Columns, EnvSpec, PreviousStep, flat_columns, num_rows, random_obs, sources


def single_trainer(config: Config, threads: int) -> Config:
    """Return a config with one trainer, whose batch has the size of one trainer's part in the run.

    Its updates are compiled only with `trainer.compile=true`, because a trial must not wait for a compilation.
    """
    share, choice = max(1, config.trainer.batch_size // config.trainer.num), config.trainer.compile
    runs = "replay" if choice == "auto" else choice
    trainer = replace(config.trainer, num=1, batch_size=share, threads=threads, compile=runs)
    return replace(config, trainer=trainer)


def lone_trainer(config: Config, spec: EnvSpec, threads: int = 1) -> Trainer:
    """Return one of the run's trainers, on `config.device`. It does not average gradients with other trainers."""
    return make_trainer(single_trainer(config, threads), spec, config.device, 0)


def random_batch(config: Config, spec: EnvSpec, params: Array) -> tuple[BatchTrainingData, Columns]:
    """Return a batch `[1, B, ...]` of random data. The batch is drawn from a replay with the run's settings."""
    size, num = config.trainer.batch_size, config.worker.envs
    table = replace(config.replay, capacity=config.row_steps * (2 * size + num), shards=1)
    replay = make_replay(replace(config, replay=table, data=replace(config.data, source=None)), spec, 0)
    policy, rng = make_policy(config, spec, 0), np.random.default_rng(0)
    policy.load(params)
    builder, number, last = make_builder(config, spec, policy, 0, 0), 0, PreviousStep.none(spec, num)
    while len(replay.table) < size:
        obs, next_obs = (random_obs(spec.obs, num, rng) for _ in range(2))
        reward, never = rng.standard_normal(num, np.float32), np.zeros(num, np.bool_)
        step = {**flat_columns("obs", obs), **policy.random(obs, last), **flat_columns("next_obs", next_obs)}
        step |= {"reward": reward, "source": sources(0, num), "terminated": never, "valid": ~never}
        step["truncated"] = ~never if most_open_steps(config) else never  # rows with returns wait for the episode's end
        builder.append(step)
        rows = builder.take()
        zeros = dict.fromkeys(("worker", "incarnation", "first_env_step", "last_env_step", "version", "opt_steps"), 0)
        block = Block(number=number, rows=num_rows(rows), **zeros)
        replay.insert([InsertTransition((block,), (), 0.0)], rows)
        number += 1
    header, columns = replay.sample(SampleBatch(1, size))
    assert isinstance(header, BatchTrainingData)
    assert not isinstance(columns, BatchTrainingData)
    return header, columns


def try_policy(config: Config, spec: EnvSpec, policy: Policy, scheduled: Mapping[str, float]) -> None:
    """Have a policy choose exploring and greedy actions for random observations, with these exploration values.

    Exceptions of the policy are passed on. Raise NotImplementedError if `act` lacks a column.
    """
    worker, last = config.worker, PreviousStep.none(spec, config.worker.envs)
    policy.explore(worker_values(worker.exploration, scheduled, 0, worker.known_num, worker.envs))
    obs = [random_obs(spec.obs, worker.envs, np.random.default_rng(0)) for _ in range(2)]
    columns, _ = policy.act(obs[0], last), policy.greedy(obs[1], last)
    needed = load_algorithm(config.algo.name).Policy.extra_columns(config.algo, config.network, spec)
    if missing := needed.keys() - columns:
        raise NotImplementedError(f"Policy.act gives no {', '.join(sorted(missing))}; extra_columns declares it")
