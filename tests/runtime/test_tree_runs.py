"""Runs with Dict observations: a test algorithm checks every part."""

import dataclasses

import numpy as np
import pytest
from choices import some
from counting import check_counter_rows, check_counter_sequences, check_tree
from graphs import TINY, make_config

from drl_cli.algos.lookup import load_algorithm
from drl_cli.envs.make import read_spec
from drl_cli.replay.frame_table import FrameTable
from drl_cli.run_folder.checkpoint import read_arrays, write_arrays
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import LoadParams

TREE = "env=drl_cli.envs.probes:Tree-v0"
SEQUENCES = ("replay=sequences", "replay.seq_len=4", "replay.burn_in=4", "replay.overlap=1")
REPLAYS = {
    "uniform": ("replay=uniform",), "lz4": ("replay=uniform", "replay.compress=lz4"),
    "prioritized": ("replay=prioritized", "replay.initial_priority=worker"), "sequences": SEQUENCES,
    "on-policy": ("algo=ppo", "trainer.batch_size=128", "orchestrator.min_inserts=0"),
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("support_algos")


def change(config):
    algo = load_algorithm("parts").Config(name="parts", gamma=0.99, n_step=config.algo.n_step)
    return dataclasses.replace(config, algo=algo)


@pytest.mark.parametrize("mode", some(["single", "sync", "async"], "sync"))
@pytest.mark.parametrize("replay", ["uniform", "prioritized", "sequences", "on-policy"])
def test_every_part_arrives(run_graph, mode, replay):
    """Parts arrive in batches, in replay and in evaluations of three steps."""
    graph = run_graph(*(TREE, f"mode={mode}", *REPLAYS[replay], "worker.num=2"), change=change)
    algorithm = graph.trainers["trainer"].role.algorithm
    assert len(algorithm.errors) == graph.progress.opt_steps > 0
    assert (max(algorithm.errors), graph.progress.last.mean) == (0, 6.0)
    table = graph.replay.shards[0].role.table
    assert isinstance(table, FrameTable)
    rows = table.contents()
    if replay == "sequences":
        sequences = check_tree(rows, rows["valid"])
        if mode != "async":  # there one worker may have taken more steps than the other
            check_counter_sequences(sequences, 8, graph.progress.env_steps // 8, 4, 4, 1)
    elif replay != "on-policy":  # the queue is empty: the algorithm has checked its rows
        check_counter_rows(check_tree(rows), 1, 0.99, graph.progress.env_steps)
    if replay == "prioritized":
        store = table.store.take(np.arange(len(table)))
        sampler = table.table.sampler
        expected = (1.0 + store["obs.inner.0"] + sampler.eps) ** sampler.alpha
        np.testing.assert_allclose(table.table.sampler.tree.values[: len(table)], expected)


def make_worker(*overrides, index=0, incarnation=0):
    config = change(make_config(*TINY, TREE, "worker.num=2", "worker.envs=3", "worker.block_rows=30", *overrides))
    return Worker(config, read_spec(config.env), index, incarnation)


def collect(worker, version):
    header, columns = worker.collect(LoadParams(version, 0, 0), np.full(1, version, np.float32))
    return (header.blocks, header.episodes, header.faults), columns


@pytest.mark.slow
@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("discrete", some([True, False], True))
def test_a_worker_continues_bit_for_bit(tmp_path, replay, discrete):
    overrides = (*REPLAYS[replay], f"+env.kwargs.discrete={discrete}")
    first, second = make_worker(*overrides, incarnation=2), make_worker(*overrides)
    for version in range(5):
        collect(first, version)
    sums = {"state": write_arrays(tmp_path / "state", first.state())}
    second.load_state(read_arrays(tmp_path, "state", {"sha256": sums}))
    for version in range(5, 9):
        (head, rows), (same_head, same_rows) = collect(first, version), collect(second, version)
        assert head == same_head
        assert rows.keys() == same_rows.keys()
        for name, column in rows.items():
            assert (column.dtype, column.tobytes()) == (same_rows[name].dtype, same_rows[name].tobytes()), name
    assert first.env_steps == 9 * 30


def test_a_difference_in_any_part_starts_a_new_episode():
    """The repeated episode differs only in a nested discrete part."""
    first, second = make_worker(), make_worker()
    collect(first, 0)
    state = first.state()
    changed = state["envs.obs.inner.1"].copy()
    changed[1, 0] += 1
    lost = second.envs.load_state({
        name.removeprefix("envs."): array for name, array in (state | {"envs.obs.inner.1": changed}).items()
    })  # fmt: skip
    assert lost == ["env 1: can't continue its episode (its repeat differs); it begins another"]
