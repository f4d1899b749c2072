"""Several trainers on Ray: together they go where one goes; one that is lost ends the run with its name."""

import os
import signal
import time

import numpy as np
import pytest
from graphs import COUNTER, weights

from drl_cli.errors import RoleLost
from drl_cli.runtime.place.handles import get

pytestmark = pytest.mark.ray


def policy(graph):
    """The final parameters of the policy, as every trainer has them."""
    ranks = [get(trainer.call("publish", 0, 0, results=2)[1]) for trainer in graph.trainers.trainers]
    for params in ranks:
        np.testing.assert_array_equal(params, ranks[0])
    return ranks[0]


@pytest.mark.parametrize(
    "option",
    [
        "replay=uniform",
        pytest.param("replay=prioritized", marks=pytest.mark.exhaustive),
        pytest.param("env.normalize_obs=true", marks=pytest.mark.exhaustive),
    ],
)
def test_two_equal_one_and_are_reproducible(run_graph, option):
    args = (COUNTER, "mode=sync", "worker.num=2", option, "seed=5")
    one = run_graph(*args)
    two, again = (run_graph(*args, "trainer.num=2", on_ray=True) for _ in range(2))
    assert two.progress.opt_steps == one.progress.opt_steps > 50
    np.testing.assert_allclose(policy(two), policy(one), rtol=0, atol=1e-3)  # what they collect feeds back
    assert weights(two) == weights(again)
    sent = two.progress.trace.counts
    assert sent[4] == 2 * one.progress.trace.counts[4]
    assert sent[5] == (sent[4] if option == "replay=prioritized" else 0)


def test_async_with_two(run_graph):
    graph = run_graph(COUNTER, "mode=async", "worker.num=2", "trainer.num=2", "replay=prioritized", on_ray=True)
    progress = graph.progress
    assert policy(graph).any()
    assert progress.opt_steps == (progress.inserts - 64) // 4
    assert progress.samples == progress.opt_steps
    assert progress.trace.counts[5] == progress.trace.counts[4] > 0


def test_on_policy_with_two(run_graph):
    args = ("algo=ppo", "algo.minibatch_size=8", "worker.num=2", "worker.block_rows=8", "total_env_steps=256")
    graph = run_graph(COUNTER, *args, "mode=async", "trainer.num=2", on_ray=True)
    assert policy(graph).any()
    assert graph.progress.samples == graph.progress.trace.counts[4] / 2 > 0


def end(graph, rank, number):
    """Send a signal to a trainer while the graph runs; returns the error that ends the run, and after how long."""
    process = get(graph.trainers.trainers[rank].ping())
    collected, sent = graph.progress.collected, []

    def note(header):
        collected(header)
        if graph.progress.opt_steps > 100 and not sent:
            os.kill(process, number)
            sent.append(time.monotonic())

    graph.progress.collected = note
    with pytest.raises(RoleLost) as caught:
        graph.run()
    elapsed = time.monotonic() - sent[0]
    if number != signal.SIGKILL:
        os.kill(process, signal.SIGKILL)
    return str(caught.value), elapsed


@pytest.mark.parametrize(
    ("mode", "rank"),
    [
        pytest.param("sync", 1, marks=pytest.mark.exhaustive),
        pytest.param("async", 0, marks=pytest.mark.exhaustive),
        ("async", 1),
    ],
)
def test_a_killed_trainer_ends_the_run_with_its_name(build_graph, mode, rank):
    graph = build_graph(COUNTER, f"mode={mode}", "trainer.num=2", "total_env_steps=100000", on_ray=True)
    message, elapsed = end(graph, rank, signal.SIGKILL)
    assert message.startswith(f"trainer {rank} died")
    assert elapsed < 60  # a fifth of stall_s


@pytest.mark.exhaustive
def test_a_trainer_that_hangs_ends_the_run_with_its_name(build_graph):
    args = ("mode=async", "trainer.num=2", "total_env_steps=100000", "orchestrator.stall_s=20")
    message, elapsed = end(build_graph(COUNTER, *args, on_ray=True), 1, signal.SIGSTOP)
    assert "trainer 1" in message
    assert elapsed < 60
