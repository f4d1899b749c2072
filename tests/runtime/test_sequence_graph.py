"""Runs with sequences: a recurrent test algorithm compares its states with the workers' states."""

import dataclasses

import numpy as np
import pytest
from choices import some
from counting import check_counter_sequences
from graphs import COUNTER, at, workers
from handles import by_name
from walks import check_states

from drl_cli.algos.lookup import load_algorithm
from drl_cli.replay.builders import mix
from drl_cli.runtime.place.handles import get

SHAPE = (4, 4, 1)  # seq_len, burn_in, overlap
OVERRIDES = (
    COUNTER, "replay=sequences",
    *(f"replay.{name}={value}" for name, value in zip(("seq_len", "burn_in", "overlap"), SHAPE, strict=True)),
    "worker.num=2", "worker.random_steps=0",
)  # fmt: skip


@pytest.fixture
def run_recall(run_graph, support_algos):
    def change(config):
        return dataclasses.replace(config, algo=load_algorithm("recall").Config(name="recall"))

    return lambda *overrides: run_graph(*OVERRIDES, *overrides, change=change)


def tables(graph):
    return [shard.role.table for shard in graph.replay.shards]


def expected_priorities(table):
    rows, sampler = table.store.take(np.arange(len(table))), table.sampler
    priorities = mix(rows["reward"][:, table.burn_in :], rows["valid"][:, table.burn_in :], table.eta)
    return (priorities + sampler.eps) ** sampler.alpha


@pytest.mark.parametrize(("mode", "proxies"), some([("single", 0), ("sync", 1), ("async", 0)], ("sync", 1)))
def test_transitions_are_counted_and_sequences_are_whole(run_recall, mode, proxies):
    graph = run_recall(f"mode={mode}", f"worker.proxies={proxies}")
    progress, (table,), rows = graph.progress, tables(graph), get(by_name(graph.replay.shards[0], "contents"))
    open_rows = sum(worker.builder.open_rows for worker in workers(graph))
    assert progress.env_steps == sum(worker.env_steps for worker in workers(graph)) >= 512
    assert progress.inserts == graph.limiter.landed == table.inserts == progress.env_steps - open_rows
    assert len(table) == len(rows["valid"]) < progress.inserts
    assert table.stats()["beta"] == 1.0
    left = 0
    first = rows["obs"][np.arange(len(table)), rows["valid"].argmax(1), 0]
    for worker in workers(graph):
        mine = np.isin(first, worker.envs.obs[:, 0])
        own = {name: column[mine] for name, column in rows.items()}
        left += check_counter_sequences(own, len(worker.envs.envs), worker.env_steps // len(worker.envs.envs), *SHAPE)[
            1
        ]
    assert left == open_rows


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["single", "sync", "async"], "async"))
@pytest.mark.parametrize(
    ("initial", "remover"),
    some([(i, r) for i in ("max", "worker") for r in ("oldest", "random")], ("max", "oldest"), ("worker", "random")),
)
def test_states_priorities_and_pace_are_exact(run_recall, mode, initial, remover):
    graph = run_recall(
        f"mode={mode}", f"replay.initial_priority={initial}", f"replay.remover={remover}", "replay.capacity=420",
        "replay.shards=2", "total_env_steps=1200", "orchestrator.sample_insert_ratio=0.5",
    )  # fmt: skip
    progress = graph.progress
    report, errors = progress.report(0.0), graph.trainers["trainer"].role.algorithm.errors
    assert len(errors) == progress.opt_steps > 450
    assert max(errors) == 0
    assert progress.trace.counts[5] == progress.trace.counts[4] > 0
    assert progress.updates_per_env_step() == pytest.approx(0.5, rel=0.03)
    assert progress.inserts == sum(table.inserts for table in tables(graph))
    assert report["replay/bad_priorities"] == 0
    for table in tables(graph):
        assert len(table) == table.store.capacity == 70
        values, expected = table.sampler.tree.values[:70], expected_priorities(table)
        is_exact = np.isclose(values, expected, rtol=1e-5)
        assert is_exact.all() if initial == "worker" else is_exact.mean() > 0.3
        assert (is_exact | (values > expected)).all()  # not drawn yet: the largest of the time


def frozen(num_workers):
    """DQN with an LSTM and a learning rate that is too small to change the parameters."""
    memory = ("algo=dqn", "network=lstm", "network.memory_size=6", "algo.lr=1e-30", f"worker.num={num_workers}")
    return ("env=walks:Walk-v0", *OVERRIDES[1:5], *memory, "total_env_steps=800")


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["single", "sync", "async"], "sync"))
def test_states_in_replay_are_those_of_whole_episodes(run_graph, mode):
    graph = run_graph(*frozen(1 if mode == "single" else 2), f"mode={mode}", "orchestrator.sample_insert_ratio=0.1")
    assert graph.progress.opt_steps > 30
    encoder = graph.trainers["trainer"].role.algorithm.encoder
    check_states(encoder, get(by_name(graph.replay.shards[0], "contents")), least=100)


@pytest.mark.ray
@pytest.mark.exhaustive
def test_states_in_replay_are_right_although_a_worker_was_killed(build_graph):
    args = (*frozen(2), "mode=async", "seed=3", "orchestrator.sample_insert_ratio=0.1")
    graph = build_graph(*args, on_ray=True)
    at(graph, 400, lambda: graph.pool.members[1].handle.kill())
    graph.run()
    graph.finish()
    assert graph.progress.worker_restarts == 1
    encoder = build_graph(*args).trainers["trainer"].role.algorithm.encoder
    check_states(encoder, get(by_name(graph.replay.shards[0], "contents")), least=100)
