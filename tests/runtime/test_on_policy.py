"""PPO in a run: every transition is used at most once, in order, before it is too old."""

import dataclasses
import os
import signal

import numpy as np
import pytest
from choices import some
from graphs import COUNTER, at, check_resumed_run, weights
from handles import by_name

from drl_cli.algos.on_policy import ppo
from drl_cli.runtime.place.handles import get

MODES = ("single", "sync", "async")
PPO = (
    *(COUNTER, "algo=ppo", "algo.minibatch_size=8", "algo.epochs=2"),
    *("worker.num=2", "worker.block_rows=8", "total_env_steps=512"),
)


def record(graph):
    """Return a list that receives the headers and batches `[U, B, ...]` of the trainer."""
    batches, train = [], graph.trainers["trainer"].role.train

    def recording(header, columns):
        batches.append((header, columns))
        return train(header, columns)

    graph.trainers["trainer"].role.train = recording
    return batches


def waiting(graph):
    (shard,) = graph.replay.shards
    return get(by_name(shard, "contents"))["reward"]


def check_account(graph, batch_size=16):
    """Check that each inserted row was served, dropped or is waiting; return the dropped rows."""
    progress = graph.progress
    dropped = progress.report(0.0)["replay/dropped_rows"]
    assert progress.inserts == progress.samples * batch_size + dropped + len(waiting(graph))
    return dropped


@pytest.mark.parametrize(
    ("mode", "proxies"), some([("single", 0), ("sync", 1), ("async", 0), ("async", 1)], ("single", 0), ("async", 1))
)
@pytest.mark.parametrize("rows", some([8, 12, 4], 12))  # of a block; batches have 16
def test_every_transition_is_learned_from_at_most_once_and_in_order(build_graph, mode, proxies, rows):
    graph = build_graph(*PPO, f"mode={mode}", f"worker.proxies={proxies}", f"worker.block_rows={rows}")
    batches = record(graph)
    graph.run()
    graph.finish()
    obs = np.concatenate([columns["obs"].reshape(-1, 3) for _, columns in batches])
    assert len(np.unique(obs, axis=0)) == len(obs) == 16 * graph.progress.samples
    tags = np.unique(obs[:, 0])
    assert len(tags) == 8
    for tag in tags:
        times = obs[obs[:, 0] == tag][:, 1] * 100 + obs[obs[:, 0] == tag][:, 2]
        assert (np.diff(times) > 0).all()
    dropped = check_account(graph)
    assert dropped == 0 or (mode, rows) == ("async", 12)  # the rest of a block ages with each batch
    assert dropped < 0.5 * graph.progress.inserts
    assert graph.progress.opt_steps == graph.progress.samples * 2 * 2
    assert max(header.stats["staleness_max"] for header, _ in batches) <= 1


@pytest.mark.parametrize("mode", some(MODES, "async"))
def test_chains_of_rows_are_unbroken_up_to_their_cuts(build_graph, mode):
    graph = build_graph(*PPO, f"mode={mode}", "worker.block_rows=32", "trainer.batch_size=64")
    batches = record(graph)
    graph.run()
    for _, columns in batches:
        for batch in range(len(columns["cut"])):
            obs, next_obs, cut = (columns[name][batch] for name in ("obs", "next_obs", "cut"))
            goes_on = ~cut[:-1]
            assert goes_on.sum() > 16
            np.testing.assert_array_equal(next_obs[:-1][goes_on], obs[1:][goes_on])
            assert cut[columns["terminated"][batch] | columns["truncated"][batch]].all()


def test_rows_that_are_too_old_are_dropped_and_counted(build_graph):
    """Each 2 x 12 rows leave 8 rows behind, which are one version old in the next batch."""
    graph = build_graph(*PPO, "mode=sync", "worker.block_rows=12", "replay.max_staleness=0", "total_env_steps=240")
    batches = record(graph)
    graph.run()
    assert (check_account(graph), graph.progress.samples) == (9 * 8, 10)
    assert ({header.stats["staleness_max"] for header, _ in batches}, len(waiting(graph))) == ({0.0}, 8)


@pytest.fixture
def fifo(monkeypatch):
    monkeypatch.setattr(ppo, "TABLES", ("fifo",))


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(MODES, "async"))
def test_each_batch_is_learned_from_several_times(build_graph, fifo, mode):
    graph = build_graph(*PPO, "replay=fifo", "replay.times=3", f"mode={mode}", "total_env_steps=256")
    batches = record(graph)
    graph.run()
    graph.finish()
    progress, numbers = graph.progress, [columns["obs"][0].tolist() for _, columns in batches]
    assert len(numbers) == progress.samples == 3 * 256 // 16
    assert numbers[0::3] == numbers[1::3] == numbers[2::3]
    rows = np.array(numbers[::3]).reshape(-1, 3)
    assert len(np.unique(rows, axis=0)) == len(rows) == 256
    assert progress.report(0.0)["replay/dropped_rows"] == 0
    assert max(header.stats["staleness_max"] for header, _ in batches) <= 1
    assert progress.loads == 17  # the first version, and one after each batch


@pytest.mark.slow
def test_versions_between_two_servings_age_the_rows_up_to_the_bound(build_graph, fifo):
    more = ("replay.max_staleness=5", "orchestrator.sample_load_ratio=1", "mode=async")
    graph = build_graph(*PPO, "replay=fifo", "replay.times=3", *more, "total_env_steps=256")
    batches = record(graph)
    graph.run()
    assert graph.progress.samples == len(batches) == 3 * 256 // 16
    assert graph.progress.loads > 40
    assert 2 <= max(header.stats["staleness_max"] for header, _ in batches) <= 5


def test_equal_seeds_give_equal_weights(run_graph):
    def run(mode, seed=3):
        graph = run_graph(*PPO, f"mode={mode}", f"seed={seed}")
        assert graph.progress.opt_steps > 50
        return weights(graph)

    assert run("single") == run("sync") != run("sync", seed=4)


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_every_rollout_is_made_by_the_newest_parameters(build_graph, mode):
    graph = build_graph(*PPO, f"mode={mode}", "worker.block_rows=null", "total_env_steps=160")
    batches = record(graph)
    graph.run()
    assert len(batches) == 10
    assert graph.progress.loads == 11  # the first version, and one after each rollout
    assert {header.stats["staleness_max"] for header, _ in batches} == {0.0}
    assert check_account(graph) == len(waiting(graph)) == 0


LIMITERS = [("ratio", 2048), pytest.param("none", 16_384, marks=pytest.mark.exhaustive)]
"""Limiters and environment steps. Without a limiter, workers make 2,048 steps during the trainer's first update."""


@pytest.mark.parametrize(("limiter", "steps"), LIMITERS)
@pytest.mark.ray
def test_async_on_ray(run_graph, limiter, steps):
    graph = run_graph(*PPO, "mode=async", f"total_env_steps={steps}", f"orchestrator.limiter={limiter}", on_ray=True)
    check_account(graph)
    assert graph.progress.env_steps >= steps
    assert graph.progress.opt_steps == graph.progress.samples * 2 * 2 > 100
    assert graph.progress.report(0.0)["replay/staleness_max"] <= 1


@pytest.mark.parametrize("bound", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
@pytest.mark.ray
def test_rows_stay_within_the_bound_if_the_trainer_is_ten_times_slower(build_graph, bound):
    """Only admission holds the workers back: nothing is dropped, and what acts and what is learned from stay young."""
    graph = build_graph(
        *PPO,
        *("mode=async", f"replay.max_staleness={bound}", "total_env_steps=1024"),
        on_ray=True,
        change=lambda config: dataclasses.replace(
            config, algo=dataclasses.replace(config.algo, name="outside.slow_ppo")
        ),
    )
    ages, trained = [], graph.progress.trained

    def recording(report, shard=0):
        ages.append(report.replay["staleness_max"])
        trained(report, shard)

    graph.progress.trained = recording
    graph.run()
    graph.finish()
    assert graph.progress.samples == len(ages) == 1024 // 16
    assert (max(ages), check_account(graph)) == (bound, 0)
    summary = graph.progress.summary(1.0, 0)
    assert summary["policy_lag_max"] <= (bound + 1) * 2 * 2  # versions times epochs times minibatches


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_run_with_a_bonus_survives_a_killed_worker(build_graph):
    graph = build_graph(*PPO, "mode=async", "total_env_steps=2048", "reward=rnd", on_ray=True)
    victim = graph.pool.members[1].handle
    at(graph, 500, lambda: os.kill(get(victim.ping()), signal.SIGKILL))
    graph.run()
    graph.finish()
    assert graph.progress.worker_restarts == 1
    assert graph.progress.env_steps >= 2048
    (trainer,) = graph.trainers.values()
    state = get(by_name(trainer, "state"))
    batches = state["algorithm.buffer.reward.moments"][0]
    assert batches == graph.progress.samples  # the normaliser has seen every batch once


@pytest.mark.slow
def test_learns_from_rollouts_that_are_a_version_old(run_graph):
    """CartPole in mode=async; random actions score 22."""
    tuned = ("network.hidden=[64,64]", "algo.lr=1e-3", "worker.envs=8", "trainer.batch_size=512")
    graph = run_graph(
        *("env=CartPole-v1", "algo=ppo", "mode=async", "worker.num=1", "worker.block_rows=512", *tuned),
        *("total_env_steps=20000", "manage.eval_period=4000", "manage.eval_episodes=10", "stop.return=400"),
    )
    assert graph.stop_reason == "return"
    stats = graph.progress.report(0.0)
    assert (stats["replay/staleness_mean"], stats["replay/dropped_rows"]) == (1.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["single", "sync"], "single"))
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("CartPole-v1", ("algo=pqn", "algo.epsilon_steps=400")),
        pytest.param("CartPole-v1", ("algo=reinforce",), marks=pytest.mark.exhaustive),
        ("Pendulum-v1", ("algo=vmpo", "env.normalize_obs=true")),
        pytest.param("Pendulum-v1", ("algo=reppo", "env.normalize_obs=true"), marks=pytest.mark.exhaustive),
        ("Pendulum-v1", ("algo=ppo", "algo.kl_coef=0.5", "algo.squash=true", "algo.value_clip=0.2")),
    ],
    ids=["pqn", "reinforce", "vmpo", "reppo", "ppo"],
)
def test_a_resumed_run_equals_an_uninterrupted_run(run_graph, env, words, mode):
    """This includes the dual variables, the weight of the KL penalty, epsilon, and the moments of observations."""
    num = 2 if mode == "sync" else 1
    args = (f"env={env}", *words, "tuned=none", f"mode={mode}", f"worker.num={num}", "trainer.batch_size=64")
    args = (*args, "worker.envs=4", "network.hidden=[8]")
    check_resumed_run(run_graph, *args)
