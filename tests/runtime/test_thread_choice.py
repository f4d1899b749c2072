"""trainer.threads=auto: the rule and what is made of a measurement, on literal numbers; measuring real updates."""

import math

import numpy as np
import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.runtime.program import make_trainer
from drl_cli.runtime.thread_choice import (
    by_rule,
    candidates,
    choose_threads,
    fewest,
    free_cores,
    measure,
    random_batch,
)

CHOOSE, FRAMES = "env=drl_cli.envs.probes:Choose-v0", "env=drl_cli.envs.probes:Frames-v0"
AUTO = (COUNTER, "trainer.threads=auto")


@pytest.mark.parametrize(
    ("overrides", "cores", "free"),
    [
        (("mode=async", "worker.num=1"), 2, 1),
        (("mode=async", "worker.num=3"), 8, 5),
        (("mode=async", "worker.num=9"), 8, 1),
        (("mode=async", "worker.num=2", "trainer.num=2"), 8, 3),
        (("mode=sync", "worker.num=3"), 8, 8),
        (("mode=single",), 4, 4),
    ],
)
def test_cores_that_are_free_for_a_trainer(overrides, cores, free):
    assert free_cores(make_config(*TINY, COUNTER, *overrides), cores) == free


@pytest.mark.parametrize(
    ("batch_size", "hidden", "free", "threads"),
    [
        (256, (256, 256), 8, 1),
        (2048, (256, 256), 8, 2),
        (2048, (256, 256), 1, 1),
        (1024, (64, 512, 512, 64), 8, 4),
        (1024, (64, 512, 512, 64), 3, 3),
        (4096, (1024,), 8, 1),
        (1, (), 8, 1),
    ],
)
def test_the_rule(batch_size, hidden, free, threads):
    assert by_rule(batch_size, hidden, free) == threads


def test_numbers_that_are_tried():
    assert [candidates(free) for free in (1, 2, 3, 4, 6, 16)] == [
        *([1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 6], [1, 2, 4, 8, 16]),
    ]


@pytest.mark.parametrize(
    ("seconds", "threads"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 0.95}, 1),
        ({1: 1.0, 2: 0.9}, 2),
        ({1: 1.0, 2: 1.2, 4: 0.5}, 4),
        ({1: 1.0, 2: 0.6, 4: 0.55}, 2),
        ({1: 1.0, 2: 0.6, 4: 0.5, 8: 0.9}, 4),
    ],
)
def test_the_fewest_that_more_do_not_beat_by_a_tenth(seconds, threads):
    assert fewest(seconds) == threads


@pytest.mark.parametrize("mode", [["mode=single"], ["mode=sync"], ["mode=async", "debug.in_process=true"]])
def test_where_equal_seeds_give_equal_weights_nothing_is_measured(mode):
    config = make_config(*TINY, *AUTO, *mode, "network.hidden=[512,512]", "trainer.batch_size=512")
    chosen, seconds = choose_threads(config, read_spec(config.env), 16)
    assert (chosen.num_threads, seconds) == (2, {})


def test_a_single_free_core_needs_no_measurement():
    config = make_config(*TINY, *AUTO, "mode=async", "worker.num=3")
    chosen, seconds = choose_threads(config, read_spec(config.env), 4)
    assert (chosen.num_threads, seconds) == (1, {})


def test_a_number_stays():
    config = make_config(*TINY, COUNTER, "mode=async", "worker.num=1", "trainer.threads=3")
    chosen, seconds = choose_threads(config, read_spec(config.env), 16)
    assert (chosen, seconds) == (config, {})


@pytest.mark.slow
def test_async_measures_in_a_process_of_its_own():
    config = make_config(*TINY, *AUTO, "mode=async", "worker.num=1")
    chosen, seconds = choose_threads(config, read_spec(config.env), 3)
    assert list(seconds) == [1, 2]
    assert chosen.num_threads == fewest(seconds)


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
    ids=["n-step, normalized", "prioritized", "rated", "ppo", "images", "memory"],
)
def test_an_update_like_the_runs_own_is_measured(overrides):
    config = make_config(*TINY, *overrides)
    seconds = measure(config, read_spec(config.env), [1])
    assert 0 < seconds[1] < math.inf


def test_the_batch_has_the_runs_columns():
    config = make_config(*TINY, COUNTER, "replay=sequences", "replay.seq_len=6", "replay.burn_in=2", "replay.overlap=3")
    spec = read_spec(config.env)
    _, params = make_trainer(config, spec, "cpu", 0).publish(0, 0)
    header, columns = random_batch(config, spec, params)
    assert (header.num_batches, header.batch_size) == (1, 16)
    assert columns["obs"].shape == (1, 16, 8, 3)
    assert len(np.unique(columns["reward"])) > 16
