"""mode=offline: the columns that an algorithm asks for, and the share of the episodes that BC imitates."""

import numpy as np
import pytest
from datasets import record
from graphs import COUNTER

from drl_cli.envs.probes import Counter

OFFLINE = (COUNTER, "mode=offline", "total_updates=8", "trainer.batch_size=16", "replay.capacity=2000")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "counter.npz"
    record(Counter(), path)
    return f"data.source={path}"


def rows_of(graph):
    return graph.replay.shards[0].role.table.contents()


def test_rows_have_the_returns_of_their_episodes(run_graph, data):
    rows = rows_of(run_graph(*OFFLINE, data, "algo=cal_ql", "algo.gamma=0.5", "algo.samples=1", "env.reward_scale=2"))
    ended = rows["terminated"] | rows["truncated"]
    np.testing.assert_allclose(rows["mc_return"][ended], rows["reward"][ended], rtol=1e-6)
    assert (~ended).any()
    assert rows["mc_return"].shape == rows["reward"].shape


def test_rows_have_the_next_action(run_graph, data):
    rows = rows_of(run_graph(*OFFLINE, data, "algo=rebrac"))
    assert rows["next_action"].shape == rows["action"].shape
    ended = rows["terminated"] | rows["truncated"]
    np.testing.assert_array_equal(rows["next_action"][ended], rows["action"][ended])
    assert (rows["next_action"][~ended] != rows["action"][~ended]).any()


def test_bc_learns_from_a_share_of_the_episodes(run_graph, data):
    whole, part = (run_graph(*OFFLINE, data, "algo=bc", f"algo.top={top}").progress.inserts for top in (1.0, 0.1))
    assert 0 < part < 0.5 * whole


@pytest.mark.parametrize("algo", ["rebrac", "cal_ql"])
def test_rows_of_workers_and_of_data_have_the_same_columns(run_graph, data, algo):
    """With data.share, no row has the columns that only a dataset can give."""
    run = (COUNTER, "mode=single", "total_env_steps=64", "trainer.batch_size=16", "replay.capacity=2000")
    run = (*run, "orchestrator.min_inserts=16", "worker.random_steps=0")
    graph = run_graph(*run, data, "data.share=0.5", f"algo={algo}")
    assert graph.progress.opt_steps > 0
    assert not {"next_action", "mc_return"} & rows_of(graph).keys()
