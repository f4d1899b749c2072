"""Runs with images: frames are stored once, and rows equal those of a plain store."""

import numpy as np
import pytest
from choices import some
from graphs import weights
from handles import by_name
from images import check_frames_rows

from drl_cli.envs.make import read_spec
from drl_cli.replay.fifo import FifoTable
from drl_cli.replay.frame_table import FrameTable
from drl_cli.replay.tables import ReplayTable
from drl_cli.runtime.place.handles import get

FRAMES = (
    *("env=drl_cli.envs.probes:Frames-v0", "algo=dqn", "+env.kwargs.size=12", "worker.num=2"),
    *("replay.capacity=400", "network=mlp", "network.hidden=[8]", "algo.n_step=3", "total_env_steps=512"),
)


def contents(graph):
    return get(by_name(graph.replay.shards[0], "contents"))


def table(graph):
    return graph.replay.shards[0].role.table


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("mode=single", "replay=uniform", "+env.kwargs.axis=-1"), marks=pytest.mark.exhaustive),
        ("mode=async", "replay=prioritized", "+env.kwargs.axis=0"),
        ("mode=sync", "replay=prioritized", "+env.kwargs.axis=-1", "worker.proxies=1"),
    ],
)
def test_frames_compressed_and_plain_are_the_same_run(run_graph, args):
    """Rows and weights are equal; the plain table stores every frame of every row."""
    args = (*FRAMES, *args)
    plain = run_graph(*args, "env.frame_storage=none")
    assert isinstance(table(plain), ReplayTable)
    assert plain.progress.opt_steps > 60
    for compress in ("none", "lz4"):
        graph = run_graph(*args, f"replay.compress={compress}")
        assert isinstance(table(graph), FrameTable)
        assert table(graph).images["next_obs"].k == 4
        assert table(graph).nbytes < 0.4 * table(plain).nbytes
        expected, rows = contents(plain), contents(graph)
        assert len(rows["reward"]) == len(expected["reward"]) == 400
        for name in expected:
            np.testing.assert_array_equal(rows[name], expected[name])
        assert weights(graph) == weights(plain)


ROLLOUTS = (
    *("env=drl_cli.envs.probes:Frames-v0", "+env.kwargs.size=36", "worker.num=2", "worker.envs=4"),
    *("worker.block_rows=64", "trainer.batch_size=120", "total_env_steps=512", "replay.capacity=2048"),
)
PPO = ("algo=ppo", "algo.minibatch_size=32", "algo.epochs=2", "network.hidden=[8]")


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((*PPO, "mode=single", "+env.kwargs.axis=0"), marks=pytest.mark.exhaustive),
        (*PPO, "mode=sync", "worker.proxies=1", "network=mlp"),
        pytest.param((*PPO, "mode=sync", "network=lstm"), marks=pytest.mark.slow),
        ("algo=outside.my_a2c", "mode=async"),
    ],
)
def test_rollouts_of_frames_and_of_whole_stacks_are_the_same_run(run_graph, args):
    plain = run_graph(*ROLLOUTS, *args, "env.frame_storage=none")
    framed = run_graph(*ROLLOUTS, *args)
    assert isinstance(table(plain), FifoTable)
    assert isinstance(table(framed), FrameTable)
    assert plain.progress.opt_steps >= 4
    assert weights(framed) == weights(plain)


@pytest.mark.parametrize("shards", some([1, 3], 3))
def test_every_frame_of_every_row_is_the_right_one(run_graph, shards):
    graph = run_graph(*FRAMES, "mode=sync", "worker.proxies=1", "replay.capacity=9000", f"replay.shards={shards}")
    parts = [get(by_name(shard, "contents")) for shard in graph.replay.shards]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    newest = rows["obs"][..., -1].reshape(len(rows["obs"]), -1)[:, :12].copy().view(np.int32)
    order = np.lexsort(newest.T[::-1])
    in_order = {name: column[order] for name, column in rows.items()}
    check_frames_rows(in_order, read_spec(graph.config.env), 3, graph.progress.env_steps)


@pytest.mark.ray
@pytest.mark.parametrize(("proxies", "compress"), [pytest.param(0, "none", marks=pytest.mark.exhaustive), (1, "lz4")])
def test_async_on_ray(run_graph, proxies, compress):
    more = (f"worker.proxies={proxies}", f"replay.compress={compress}", "replay.capacity=9000")
    graph = run_graph(*FRAMES, "mode=async", *more, on_ray=True)
    check_frames_rows(contents(graph), read_spec(graph.config.env), 3, graph.progress.env_steps)
    assert graph.progress.opt_steps > 100
