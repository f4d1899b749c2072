import gymnasium
import numpy as np
import pytest
import torch
from datasets import record
from graphs import COUNTER, at, weights

from drl_cli.envs.probes import Counter, Forever, Frames
from drl_cli.replay.frame_table import FrameTable

OFFLINE = (COUNTER, "mode=offline", "algo=td3", "total_updates=48", "trainer.batch_size=16", "replay.capacity=2000")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The words for a dataset of about 400 steps of Counter, with a third of its episodes of every length cut."""
    path = tmp_path_factory.mktemp("data") / "counter.npz"
    record(Counter(), path)
    return f"data.source={path}"


def loaded(data):
    return np.load(data.partition("=")[2])


def table_of(graph):
    return graph.replay.shards[0].role.table


def test_a_run_makes_total_updates_and_no_environment_step(run_graph, data):
    graph = run_graph(*OFFLINE, data)
    progress = graph.progress
    assert (progress.opt_steps, progress.samples, progress.env_steps) == (48, 48, 0)
    assert progress.inserts == len(loaded(data)["rewards"])
    assert graph.stop_reason == "total_updates"


def test_the_table_has_every_recorded_step_once(run_graph, data):
    rows, recorded = table_of(run_graph(*OFFLINE, data)).contents(), loaded(data)
    order = np.lexsort((rows["obs"][:, 2], rows["obs"][:, 1]))  # by episode and step
    for name, column in (("obs", "observations"), ("next_obs", "next_observations")):
        np.testing.assert_array_equal(rows[name][order], recorded[column])
    np.testing.assert_array_equal(rows["reward"][order], recorded["rewards"])
    np.testing.assert_array_equal(rows["terminated"][order], recorded["terminations"])
    np.testing.assert_allclose(rows["action"][order], (recorded["actions"] - 1) / 3, atol=1e-6)
    np.testing.assert_array_equal(rows["discount"][order] == 0, recorded["terminations"])


def test_windows_of_n_steps_end_with_their_episodes(run_graph, data):
    rows, recorded = table_of(run_graph(*OFFLINE, data, "algo.n_step=3", "algo.gamma=0.5")).contents(), loaded(data)
    ends = np.flatnonzero(recorded["terminations"] | recorded["truncations"])
    order = np.lexsort((rows["obs"][:, 2], rows["obs"][:, 1]))
    for i, row in enumerate(order):
        last = min(i + 2, ends[np.searchsorted(ends, i)])
        window = recorded["rewards"][i : last + 1]
        assert rows["reward"][row] == (window * 0.5 ** np.arange(len(window))).sum()
        np.testing.assert_array_equal(rows["next_obs"][row], recorded["next_observations"][last])
        assert rows["discount"][row] == (0.0 if recorded["terminations"][last] else 0.5 ** len(window))


@pytest.mark.slow
def test_recorded_rows_have_no_age(run_graph, data):
    runs = [
        run_graph(*OFFLINE, data, "total_updates=12", "algo=dr_q", "trainer.compile=false", f"replay.age_factor={x}")
        for x in (0.9, 1.0)
    ]
    assert weights(runs[0]) == weights(runs[1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [("algo=mrq",), ("algo=r2d2", "env=CartPole-v1")], ids=["windows", "recurrent"])
def test_equal_seeds_give_equal_weights_and_other_seeds_do_not(run_graph, data, options, tmp_path):
    if "env=CartPole-v1" in options:
        record("CartPole-v1", tmp_path / "cartpole.npz")
        data = f"data.source={tmp_path / 'cartpole.npz'}"
    runs = [run_graph(*OFFLINE, data, "total_updates=12", *options, f"seed={seed}") for seed in (1, 1, 2)]
    first, second, other = map(weights, runs)
    assert first == second != other


RESUMED = ("checkpoint.period=10", "manage.eval_period=14", "env.normalize_obs=true", "env.normalize_reward=true")


@pytest.mark.parametrize(
    "options",
    [(), ("replay=prioritized", "algo.n_step=3"), ("replay.capacity=160", "replay=prioritized")],
    ids=["uniform", "prioritized", "sharded"],
)
def test_a_resumed_run_gives_the_weights_of_the_unbroken_run(run_graph, data, options):
    """The run is interrupted at update 16, in the middle of a train call of the other run's size."""
    whole = run_graph(*OFFLINE, data, *RESUMED, *options)

    def interrupt(graph):
        idle = graph.idle
        graph.idle = lambda: (idle(), graph.progress.position >= 16 and graph.interrupt())

    broken = run_graph(*OFFLINE, data, *RESUMED, *options, started=interrupt)
    assert broken.stop_reason == "signal"
    assert 16 <= broken.progress.position <= 20  # fewer updates are paid for by a smaller block
    resumed = run_graph(*OFFLINE, data, *RESUMED, *options, run=broken.folder)
    assert (resumed.progress.position, resumed.progress.env_steps) == (48, 0)
    assert weights(resumed) == weights(whole)


@pytest.mark.parametrize("capacity", [2000, 160])
def test_a_checkpoint_without_replay_has_its_dataset_read_again(run_graph, data, capacity):
    options = (*OFFLINE, data, f"replay.capacity={capacity}", "checkpoint.replay=off")
    half = run_graph(*options, "total_updates=20")
    whole = run_graph(*options, run=half.folder)
    assert (whole.progress.opt_steps, whole.progress.samples, whole.limiter.owed()) == (48, 48, 0)
    assert len(table_of(whole)) == min(capacity, len(loaded(data)["rewards"]))


def test_checkpoints_and_evaluations_follow_the_updates(run_graph, data):
    graph = run_graph(*OFFLINE, data, "checkpoint.period=20", "manage.eval_period=14", "checkpoint.keep_last=9")
    names = {path.name for path in (graph.folder / "checkpoints").glob("step_*") if not path.name.endswith("-best")}
    assert names == {f"step_{updates:09d}" for updates in (0, 20, 40, 48)}
    evaluated = [(report.params_header.env_steps, report.params_header.opt_steps) for report in graph.evaluations]
    assert evaluated == [(0, 14), (0, 28), (0, 42), (0, 48)]
    lines = (graph.folder / "eval.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines] == [["env_steps", "opt_steps"]] + [
        ["0", str(updates)] for updates in (14, 28, 42, 48)
    ]


def test_learning_rates_fall_over_the_updates(run_graph, data):
    graph = run_graph(*OFFLINE, data, "optimizer.schedule=linear", "trainer.updates_per_call=7")
    assert graph.trainers["trainer"].role.algorithm.optimizer.factor == pytest.approx(1 - 47 / 48)


@pytest.mark.slow
def test_the_value_through_truncations_is_1_over_1_minus_gamma(run_graph, tmp_path):
    """10 with gamma 0.9 if truncation bootstraps; otherwise, with episodes of 5 steps, below 3.6."""
    record(gymnasium.wrappers.TimeLimit(Forever(), 5), tmp_path / "forever.npz", 200)
    probe = ("env=drl_cli.envs.probes:Forever-v0", "env.max_episode_steps=5", f"data.source={tmp_path / 'forever.npz'}")
    rates = ("algo.gamma=0.9", "algo.lr=1e-2", "algo.tau=0.1", "algo.n_step=2", "total_updates=600")
    graph = run_graph(*OFFLINE, *probe, *rates, "optimizer.schedule=linear")
    algorithm = graph.trainers["trainer"].role.algorithm
    values = algorithm.nets.critic(torch.zeros(7, 1), torch.linspace(-0.9, 0.9, 7).unsqueeze(1))
    assert values.detach().numpy() == pytest.approx(10.0, rel=0.01)


@pytest.mark.slow
def test_a_run_without_an_environment_makes_no_evaluation(run_graph, data, caplog):
    graph = run_graph(*OFFLINE, data, "env=none", "manage.eval_period=10")
    assert (graph.progress.opt_steps, graph.evaluations) == (48, [])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert {path.name for path in (graph.folder / "checkpoints").iterdir()} == {
        "last",
        "step_000000000",
        "step_000000048",
    }


@pytest.mark.slow
def test_frames_of_images_are_stored_once(run_graph, tmp_path):
    record(Frames(size=12), tmp_path / "frames.npz", 300)
    probe = ("env=drl_cli.envs.probes:Frames-v0", "+env.kwargs.size=12", f"data.source={tmp_path / 'frames.npz'}")
    words = (*OFFLINE, *probe, "algo=dqn", "network=mlp", "network.hidden=[8]", "algo.n_step=3", "total_updates=20")
    frames, plain = run_graph(*words), run_graph(*words, "env.frame_storage=none")
    assert isinstance(table_of(frames), FrameTable)
    assert not isinstance(table_of(plain), FrameTable)
    expected, rows = table_of(plain).contents(), table_of(frames).contents()
    for name in expected:
        np.testing.assert_array_equal(rows[name], expected[name])
    assert weights(frames) == weights(plain)


SHORT = (COUNTER, "mode=offline", "total_updates=8", "trainer.batch_size=16", "replay.capacity=2000")


def rows_of(graph):
    return graph.replay.shards[0].role.table.contents()


def test_rows_have_the_returns_of_their_episodes(run_graph, data):
    rows = rows_of(run_graph(*SHORT, data, "algo=cal_ql", "algo.gamma=0.5", "algo.samples=1", "env.reward_scale=2"))
    ended = rows["terminated"] | rows["truncated"]
    np.testing.assert_allclose(rows["mc_return"][ended], rows["reward"][ended], rtol=1e-6)
    assert (~ended).any()
    assert rows["mc_return"].shape == rows["reward"].shape


def test_rows_have_the_next_action(run_graph, data):
    rows = rows_of(run_graph(*SHORT, data, "algo=rebrac"))
    assert rows["next_action"].shape == rows["action"].shape
    ended = rows["terminated"] | rows["truncated"]
    np.testing.assert_array_equal(rows["next_action"][ended], rows["action"][ended])
    assert (rows["next_action"][~ended] != rows["action"][~ended]).any()


def test_bc_learns_from_a_share_of_the_episodes(run_graph, data):
    whole, part = (run_graph(*SHORT, data, "algo=bc", f"algo.top={top}").progress.inserts for top in (1.0, 0.1))
    assert 0 < part < 0.5 * whole


ONLINE = (COUNTER, "total_env_steps=256", "algo.gamma=0.5", "env.reward_scale=2", "env.reward_clip=3")
CAL_QL = (*ONLINE, "algo=cal_ql", "algo.samples=1")


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("mode=single",), ("mode=async", "worker.num=2"), ("mode=sync", "replay=prioritized")]
)
def test_rows_of_workers_have_the_returns_of_their_episodes(run_graph, options):
    graph = run_graph(*CAL_QL, *options)
    assert graph.progress.opt_steps > 0
    assert 256 - 8 * 8 < graph.progress.inserts < 256 + 64
    check_returns(rows_of(graph))


@pytest.mark.slow
def test_rows_of_workers_and_of_data_have_the_same_columns(run_graph, data):
    graph = run_graph(*CAL_QL, "mode=single", data, "data.share=0.5")
    assert graph.progress.opt_steps > 0
    table = graph.replay.shards[0].role.table
    assert table.own.contents().keys() == table.recorded.contents().keys()
    check_returns(table.own.contents())
    recorded = table.recorded.contents()
    ended = recorded["terminated"] | recorded["truncated"]
    np.testing.assert_allclose(recorded["mc_return"][ended], recorded["reward"][ended], rtol=1e-6)


@pytest.mark.slow
def test_a_resumed_run_with_returns_goes_on_bit_for_bit(run_graph):
    words = (*CAL_QL, "mode=single", "worker.block_rows=4")

    def interrupt(graph):
        at(graph, 120, graph.interrupt)

    whole, half = run_graph(*words), run_graph(*words, started=interrupt)
    assert half.progress.inserts < half.progress.env_steps < 256
    assert weights(run_graph(*words, run=half.folder)) == weights(whole)


@pytest.mark.slow
def test_an_episode_never_holds_more_rows_than_the_table(run_graph):
    """8 environments with episodes of 40 steps end together, and the table has 160 rows."""
    long = ("+env.kwargs.base_length=40", "+env.kwargs.spread=1")
    graph = run_graph(*CAL_QL, *long, "mode=single", "replay.capacity=160", "worker.envs=8", "worker.block_rows=32")
    assert graph.progress.inserts > 160
