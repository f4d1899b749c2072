import numpy as np
import pytest
from datasets import record
from graphs import COUNTER, at, weights

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


ONLINE = (COUNTER, "total_env_steps=256", "algo.gamma=0.5", "env.reward_scale=2", "env.reward_clip=3")
CAL_QL = (*ONLINE, "algo=cal_ql", "algo.samples=1")


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("options", [("mode=single",), ("mode=sync", "worker.num=2", "replay=prioritized")])
def test_rows_of_workers_have_the_next_action(run_graph, options, n_step):
    graph = run_graph(*ONLINE, "algo=rebrac", f"algo.n_step={n_step}", *options)
    assert graph.progress.opt_steps > 0
    rows = rows_of(graph)
    at = {tuple(obs): i for i, obs in enumerate(rows["obs"].tolist())}
    assert len(at) == len(rows["obs"])
    for i, next_obs in enumerate(rows["next_obs"].tolist()):
        later = at.get(tuple(next_obs))  # None: the episode ends within n steps
        if later is not None:
            np.testing.assert_array_equal(rows["next_action"][i], rows["action"][later])
    ended = rows["terminated"] | rows["truncated"]
    assert (~ended).sum() > 10
    if n_step == 1:
        np.testing.assert_array_equal(rows["next_action"][ended], rows["action"][ended])


def test_rows_of_rebrac_and_of_data_have_the_same_columns(run_graph, data):
    graph = run_graph(*ONLINE, "mode=single", data, "data.share=0.5", "algo=rebrac")
    assert graph.progress.opt_steps > 0
    assert "next_action" in rows_of(graph)


def check_returns(rows):
    """Check the returns of rows of Counter, where rewards are 2, 4, 6, 6, ... and the discount is 0.5."""
    at = {tuple(obs): i for i, obs in enumerate(rows["obs"].tolist())}
    assert len(at) == len(rows["obs"])
    ended = rows["terminated"] | rows["truncated"]
    for i, next_obs in enumerate(rows["next_obs"].tolist()):
        later = 0.0 if ended[i] else rows["mc_return"][at[tuple(next_obs)]]
        assert rows["mc_return"][i] == pytest.approx(min(3, next_obs[2]) * 2 + 0.5 * later)


@pytest.mark.parametrize(
    "options", [("mode=single",), ("mode=async", "worker.num=2"), ("mode=sync", "replay=prioritized")]
)
def test_rows_of_workers_have_the_returns_of_their_episodes(run_graph, options):
    graph = run_graph(*CAL_QL, *options)
    assert graph.progress.opt_steps > 0
    assert 256 - 8 * 8 < graph.progress.inserts < 256 + 64
    check_returns(rows_of(graph))


def test_rows_of_workers_and_of_data_have_the_same_columns(run_graph, data):
    graph = run_graph(*CAL_QL, "mode=single", data, "data.share=0.5")
    assert graph.progress.opt_steps > 0
    table = graph.replay.shards[0].role.table
    assert table.own.contents().keys() == table.recorded.contents().keys()
    check_returns(table.own.contents())
    recorded = table.recorded.contents()
    ended = recorded["terminated"] | recorded["truncated"]
    np.testing.assert_allclose(recorded["mc_return"][ended], recorded["reward"][ended], rtol=1e-6)


def test_a_resumed_run_with_returns_goes_on_bit_for_bit(run_graph):
    words = (*CAL_QL, "mode=single", "worker.block_rows=4")

    def interrupt(graph):
        at(graph, 120, graph.interrupt)

    whole, half = run_graph(*words), run_graph(*words, started=interrupt)
    assert half.progress.inserts < half.progress.env_steps < 256
    assert weights(run_graph(*words, run=half.folder)) == weights(whole)


def test_an_episode_never_holds_more_rows_than_the_table(run_graph):
    """8 environments with episodes of 40 steps end together, and the table has 160 rows."""
    long = ("+env.kwargs.base_length=40", "+env.kwargs.spread=1")
    graph = run_graph(*CAL_QL, *long, "mode=single", "replay.capacity=160", "worker.envs=8", "worker.block_rows=32")
    assert graph.progress.inserts > 160
