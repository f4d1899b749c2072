"""A random batch has the columns of the run's own batches, and the run's trainer learns from it."""

import math

import numpy as np
import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.trial import random_batch, single_trainer

CHOOSE, FRAMES = "env=drl_cli.envs.probes:Choose-v0", "env=drl_cli.envs.probes:Frames-v0"


@pytest.mark.parametrize(
    "overrides",
    [
        (COUNTER, "algo.n_step=3", "env.normalize_obs=true", "env.normalize_reward=true"),
        (COUNTER, "replay=prioritized", "trainer.batch_size=64", "trainer.num=2", "mode=sync"),
        (CHOOSE, "algo=dqn", "replay=prioritized", "replay.initial_priority=worker"),
        (COUNTER, "algo=ppo"),
        (FRAMES, "algo=dqn", "+env.kwargs.size=12"),
        (CHOOSE, "algo=dqn", "network=lstm", "network.memory_size=6", "replay=sequences"),
    ],
    ids=["n-step, normalized", "prioritized", "worker priorities", "ppo", "images", "memory"],
)
def test_a_trainer_learns_from_a_random_batch(overrides):
    config = single_trainer(make_config(*TINY, *overrides), threads=1)
    spec = read_spec(config.env)
    trainer = make_trainer(config, spec, "cpu", 0)
    report, _ = trainer.train(*random_batch(config, spec, trainer.publish(0, 0)[1]))
    assert report.num_updates >= 1
    assert all(math.isfinite(value) for value in report.metrics.values())


def test_a_random_batch_has_the_runs_columns():
    config = make_config(*TINY, COUNTER, "replay=sequences", "replay.seq_len=6", "replay.burn_in=2", "replay.overlap=3")
    spec = read_spec(config.env)
    _, params = make_trainer(config, spec, "cpu", 0).publish(0, 0)
    header, columns = random_batch(config, spec, params)
    assert (header.num_batches, header.batch_size) == (1, 16)
    assert columns["obs"].shape == (1, 16, 8, 3)
    assert len(np.unique(columns["reward"])) > 16
