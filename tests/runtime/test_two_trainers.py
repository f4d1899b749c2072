"""Several trainers equal one trainer with the whole batch, and the loss of one ends the run."""

import os
import signal
import time

import numpy as np
import pytest
from graphs import COUNTER, on_collected, weights
from handles import by_name

from drl_cli.errors import RoleLost
from drl_cli.runtime.place.handles import get


def policy(graph):
    """Return the final parameters of the policy, which are equal in all trainers."""
    ranks = [get(by_name(trainer, "publish", 0, 0, results=2)[1]) for trainer in graph.trainers.values()]
    for params in ranks:
        np.testing.assert_array_equal(params, ranks[0])
    return ranks[0]


@pytest.mark.ray
@pytest.mark.parametrize(
    "option",
    [
        "replay=uniform",
        pytest.param("replay=prioritized", marks=pytest.mark.exhaustive),
        pytest.param("env.normalize_obs=true", marks=pytest.mark.exhaustive),
    ],
)
def test_two_trainers_equal_one_and_are_reproducible(run_graph, option):
    args = (COUNTER, "mode=sync", "worker.num=1", option, "seed=5")
    one = run_graph(*args)
    two, again = (run_graph(*args, "trainer.num=2", on_ray=True) for _ in range(2))
    assert two.progress.opt_steps == one.progress.opt_steps > 50
    np.testing.assert_allclose(policy(two), policy(one), rtol=0, atol=1e-3)  # small differences grow
    assert weights(two) == weights(again)
    sent = two.progress.trace.counts
    assert sent[4] == 2 * one.progress.trace.counts[4]
    assert sent[5] == (sent[4] if option == "replay=prioritized" else 0)


@pytest.mark.ray
def test_two_trainers_in_async(run_graph):
    graph = run_graph(COUNTER, "mode=async", "worker.num=2", "trainer.num=2", "replay=prioritized", on_ray=True)
    progress = graph.progress
    assert policy(graph).any()
    assert (progress.opt_steps, progress.samples) == ((progress.inserts - 64) // 4, progress.opt_steps)
    assert progress.trace.counts[5] == progress.trace.counts[4] > 0


@pytest.mark.ray
@pytest.mark.exhaustive
def test_two_trainers_on_policy(run_graph):
    args = ("algo=ppo", "algo.minibatch_size=8", "worker.num=2", "worker.block_rows=8", "total_env_steps=256")
    graph = run_graph(COUNTER, *args, "mode=async", "trainer.num=2", on_ray=True)
    assert policy(graph).any()
    assert graph.progress.samples == graph.progress.trace.counts[4] / 2 > 0


def end(graph, rank, number):
    """Send a signal to a trainer of a running graph; return the error that ends the run, and the seconds until then."""
    process, sent = get(graph.trainers[f"trainer {rank}"].ping()), []

    def send(header):
        if graph.progress.opt_steps > 100 and not sent:
            os.kill(process, number)
            sent.append(time.monotonic())

    on_collected(graph, send)
    with pytest.raises(RoleLost) as caught:
        graph.run()
    elapsed = time.monotonic() - sent[0]
    if number != signal.SIGKILL:
        os.kill(process, signal.SIGKILL)
    return str(caught.value), elapsed


@pytest.mark.ray
@pytest.mark.parametrize(
    ("mode", "rank"),
    [
        pytest.param("sync", 1, marks=pytest.mark.exhaustive),
        pytest.param("async", 0, marks=pytest.mark.exhaustive),
        ("async", 1),
    ],
)
def test_a_killed_trainer_ends_the_run_and_is_named(build_graph, mode, rank):
    graph = build_graph(COUNTER, f"mode={mode}", "trainer.num=2", "total_env_steps=100000", on_ray=True)
    message, elapsed = end(graph, rank, signal.SIGKILL)
    assert message.startswith(f"trainer {rank} died")
    assert elapsed < 60  # a fifth of stall_s


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_hanging_trainer_ends_the_run_and_is_named(build_graph):
    args = ("mode=async", "trainer.num=2", "total_env_steps=100000", "orchestrator.stall_s=20")
    message, elapsed = end(build_graph(COUNTER, *args, on_ray=True), 1, signal.SIGSTOP)
    assert "trainer 1" in message
    assert elapsed < 60
