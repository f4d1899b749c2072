"""mode=async: workers take their random steps before the first parameters, and no other steps."""

import math
from itertools import pairwise

import numpy as np
import pytest
from counting import check_counter_rows
from graphs import COUNTER, TINY, make_config, on_collected
from handles import by_name

from drl_cli.envs.make import read_spec
from drl_cli.runtime.factories import make_trainer
from drl_cli.runtime.orchestrator.admission import steps_without_params
from drl_cli.runtime.place.handles import get
from drl_cli.runtime.trial_update import random_batch, single_trainer

DQN = ("env=drl_cli.envs.probes:Choose-v0", "algo=dqn")
ASYNC = (COUNTER, "mode=async", "worker.num=2", "algo.n_step=3", "orchestrator.min_inserts=320", "total_env_steps=1500")
RANDOM_STEPS, RANDOM_BLOCKS = 320, 10


def keep_waiting(graph):
    """Publish version 0 only after all random steps; return the list of all block headers."""
    publish, headers = graph.learning.publish, []

    def not_yet():
        graph.learning.publishing, graph.learning.publish = True, publish

    def note(header):
        headers.append(header)
        if graph.learning.params is None and graph.progress.env_steps >= RANDOM_STEPS:
            publish()

    graph.learning.publish = not_yet
    on_collected(graph, note)
    return headers


def check(graph, headers, more=0):
    """Check versions and rows; up to `more` later blocks may be random because a proxy had started them."""
    blocks = [block for header in headers for block in header.blocks]
    assert [block.version for block in blocks[:RANDOM_BLOCKS]] == [-1] * RANDOM_BLOCKS
    assert sum(block.version < 0 for block in blocks[RANDOM_BLOCKS:]) <= more
    for worker in (0, 1):
        versions = [block.version for block in blocks if block.worker == worker]
        assert all(before <= after for before, after in pairwise(versions))
        assert versions[-1] > 0
    assert graph.progress.opt_steps > 0
    assert graph.progress.updates_per_env_step() == pytest.approx(0.25, rel=0.02)
    check_counter_rows(get(by_name(graph.replay.shards[0], "contents")), 3, 0.95, graph.progress.env_steps)


@pytest.mark.slow
@pytest.mark.parametrize("fetch", ["collect", "3", "episode"])
def test_only_random_steps_are_taken_without_parameters(build_graph, fetch):
    graph = build_graph(*ASYNC, f"worker.fetch={fetch}", "orchestrator.sample_load_ratio=1")
    headers = keep_waiting(graph)
    graph.run()
    check(graph, headers)
    assert (
        graph.saver.saved["env_steps"] == RANDOM_STEPS
    )  # the checkpoint of the beginning waits for the parameters, too


@pytest.mark.slow
@pytest.mark.parametrize("normalize", ["true", "false"])
def test_a_proxy_works_before_the_first_parameters(build_graph, normalize):
    graph = build_graph(*ASYNC, "worker.proxies=1", f"env.normalize_obs={normalize}")
    headers = keep_waiting(graph)
    graph.run()
    check(graph, headers)
    assert graph.progress.trace.counts[8] == 2 * graph.progress.trace.counts[7]


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.parametrize("proxies", [0, 1])
def test_on_ray(run_graph, proxies):
    headers = []
    args = (*ASYNC, f"worker.proxies={proxies}")
    graph = run_graph(*args, started=lambda graph: headers.append(keep_waiting(graph)), on_ray=True)
    check(graph, headers[0], more=proxies)


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ((COUNTER, "mode=async"), 64),
        ((COUNTER, "mode=async", "worker.random_steps=0"), 0),
        ((COUNTER, "mode=sync"), 0),
        ((COUNTER, "mode=single"), 0),
        ((COUNTER, "mode=async", "algo=ppo", "worker.random_steps=64"), 0),
        ((*DQN, "mode=async", "replay=prioritized"), 64),
        ((*DQN, "mode=async", "replay=prioritized", "replay.initial_priority=worker"), 0),
    ],
)
def test_steps_without_params(overrides, steps):
    assert steps_without_params(make_config(*TINY, *overrides)) == steps


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
    assert (header.num_batches, columns["obs"].shape) == (1, (1, 16, 8, 3))
    assert len(np.unique(columns["reward"])) > 16
