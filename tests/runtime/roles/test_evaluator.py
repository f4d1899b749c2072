import csv
import errno
import json
import shutil
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from graphs import COUNTER, RAW, TINY, make_config
from gymnasium.spaces import Box

from drl_cli.algos.lookup import load_algorithm
from drl_cli.api import Context
from drl_cli.envs.make import read_spec
from drl_cli.run_folder import MANAGE_LOCK
from drl_cli.run_folder.checkpoint import make_draft, read_arrays, read_manifest
from drl_cli.run_folder.checkpoint_writer import Draft
from drl_cli.runtime.orchestrator import orchestrator
from drl_cli.runtime.roles import records
from drl_cli.runtime.roles.evaluator import Evaluator, Score
from drl_cli.runtime.roles.manage import Manage
from drl_cli.runtime.roles.records import hyperparameters
from drl_cli.types import LoadParams
from drl_cli.utils.files import lock
from drl_cli.utils.lazy import torch


class Seeded(gymnasium.Env):
    """Episodes of 1 + seed % 5 steps; the reward is the action; all observations are one array, changed in place."""

    def __init__(self):
        self.observation_space, self.action_space = Box(-10, 10, (2,), np.float64), Box(-1, 1, (1,), np.float32)
        self.obs = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        self.length, self.count = 1 + seed % 5, 0
        self.obs[:] = seed % 5, 0
        return self.obs, {}

    def step(self, action):
        self.count += 1
        self.obs[1] = self.count
        return self.obs, float(action[0]), self.count == self.length, False, {}


gymnasium.register("EvaluatorSeeded-v0", Seeded)


def make(*overrides, env="EvaluatorSeeded-v0", seeds=(0, 1, 2, 3, 4)):
    config = make_config(f"env={env}", "network.hidden=[8]", *RAW, *overrides)
    spec, module = read_spec(config.env), load_algorithm(config.algo.name)
    params = module.Algorithm(config.algo, config.network, spec, 0, Context(torch.device("cpu"))).policy_params()
    policy = module.Policy(config.algo, config.network, spec, 0)
    policy.load(params)
    return Evaluator(config, spec, list(seeds)), params, policy


def test_every_episode_counts_once_with_its_own_length_and_return():
    evaluator, params, policy = make()
    score = evaluator.evaluate(params)
    assert (score.lengths.tolist(), score.cut) == ([1, 2, 3, 4, 5], 0)
    for seed in range(5):
        obs = np.array([[seed, count] for count in range(seed + 1)], np.float32)
        assert score.returns[seed] == pytest.approx(policy.greedy(obs).sum(), abs=1e-5)


def test_reported_returns_are_unscaled():
    plain, params, _ = make()
    scaled, *_ = make("env.reward_scale=0.01")
    np.testing.assert_array_equal(plain.evaluate(params).returns, scaled.evaluate(params).returns)


def test_long_episodes_are_cut_and_counted():
    evaluator, params, _ = make("manage.max_episode_steps=3")
    score = evaluator.evaluate(params)
    assert (score.lengths.tolist(), score.cut) == ([1, 2, 3, 3, 3], 2)


def test_the_policy_gets_the_previous_step():
    evaluator, params, policy = make(seeds=(2, 0))  # three steps and one
    told, greedy = [], policy.greedy

    def note(obs, last):
        told.append(last._replace(reward=last.reward.copy()))
        return greedy(obs)

    evaluator.policy.greedy = note
    score = evaluator.evaluate(params)
    assert score.lengths.tolist() == [3, 1]
    assert [last.begins.tolist() for last in told] == [[True, True], [False, False], [False, False]]
    assert not told[0].action.any()
    assert not told[0].reward.any()
    for last, obs in zip(told[1:], ([2, 0], [2, 1]), strict=True):
        action = greedy(np.array([obs], np.float32))
        np.testing.assert_allclose(last.action[0], action[0], rtol=1e-6)
        assert last.reward[0] == pytest.approx(float(action[0, 0]), rel=1e-6)
    assert score.returns[0] == pytest.approx(
        sum(last.reward[0] for last in told[1:]) + greedy(np.array([[2, 2]], np.float32))[0, 0]
    )


def test_scores_add_up():
    one, other = Score(np.array([1.0, 3.0]), np.array([10, 20]), 1), Score(np.array([5.0]), np.array([30]), 2)
    both = one + other
    assert (both.returns.tolist(), both.lengths.tolist(), both.cut) == ([1.0, 3.0, 5.0], [10, 20, 30], 3)
    assert one.standard_error() == pytest.approx(1 / 2**0.5)


def test_environments_are_closed():
    evaluator, *_ = make(seeds=(0, 1))
    closed = []
    for i, env in enumerate(evaluator.envs):
        env.close = lambda i=i: closed.append(i)
    evaluator.close()
    assert closed == [0, 1]


def test_statistics():
    score = Score(np.array([1.0, 2.0, 6.0]), np.array([10, 20, 60]), 0)
    assert score.statistics() == pytest.approx(
        {"mean": 3.0, "std": 2.160246899, "min": 1.0, "max": 6.0, "median": 2.0, "episodes": 3, "length_mean": 30.0}
    )


def test_info_is_averaged_over_the_episodes_that_report_it():
    first = Score(np.ones(2), np.ones(2), 0, ({"success": 1.0, "lap_time": 3.0}, {"success": 0.0}))
    second = Score(np.ones(2), np.ones(2), 0, ({"success": 0.0}, {}))
    assert (first + second).info() == pytest.approx({"success": 1 / 3, "lap_time": 3.0})
    assert Score(np.ones(1), np.ones(1), 0).info() == {}


def test_with_exploration_values_the_evaluator_explores():
    config = make_config("env=CartPole-v1", "algo=dqn", "network.hidden=[8]")
    spec, module = read_spec(config.env), load_algorithm("dqn")
    params = module.Algorithm(config.algo, config.network, spec, 0, Context(torch.device("cpu"))).policy_params()
    greedy, never, always = (Evaluator(config, spec, [1, 2, 3], e) for e in (None, {"epsilon": 0.0}, {"epsilon": 1.0}))
    scores = [evaluator.evaluate(params).lengths.tolist() for evaluator in (greedy, never, always)]
    assert scores[0] == scores[1] != scores[2]
    assert Evaluator(config, spec, [1, 2, 3], {"epsilon": 1.0}).evaluate(params).lengths.tolist() == scores[2]
    evaluator = Evaluator(config, spec, [4, 2, 3], {"epsilon": 1.0})
    assert evaluator.evaluate(params).lengths.tolist()[1:] != scores[2][1:]


def test_watch_is_called_at_the_start_and_after_each_step():
    evaluator, params, _ = make(seeds=(2, 0))  # three steps and one
    seen = []
    evaluator.evaluate(params, watch=lambda: seen.append([env.raw.unwrapped.count for env in evaluator.envs]))
    assert seen == [[0, 0], [1, 1], [2, 1], [3, 1]]


PARAMS = np.arange(3, dtype=np.float32)
COUNTERS = {"counts": {"env_steps": 64}, "incarnation": 2}


@pytest.fixture
def make_manage(tmp_path):
    """A manage of the run in tmp_path; its evaluations score the given means in order, or the mean of the params."""
    config = make_config(*TINY, COUNTER, "checkpoint.keep_last=1")
    (tmp_path / "checkpoints").mkdir()
    made = []

    def make(*means):
        made.append(Manage(config, read_spec(config.env), tmp_path, 0.0))
        scores = iter(means)
        made[-1]._play = lambda _, params: Score(np.full(2, next(scores, params.mean())), np.ones(2, np.int64), 0)
        return made[-1]

    yield make
    for manage in made:
        manage.claim.close()


@pytest.fixture
def manage(make_manage):
    return make_manage()


def evaluate(manage, *versions):
    params = {version: np.full(3, version, np.float32) for version in versions}
    headers = [LoadParams(version, version, 10 * version) for version in versions]
    return [manage.evaluate(header, params[header.version]).is_best for header in headers]


def best(manage):
    manifest = read_manifest(manage.writer.checkpoints / "best")
    return manifest["version"], manifest["mean"]


def test_a_resumed_manage_knows_the_best_so_far(make_manage):
    first = make_manage(5.0)
    evaluate(first, 1)
    first.close("done")
    second = make_manage(4.0, 5.0, 5.5)
    assert (evaluate(second, 2), best(second), evaluate(second, 3, 4)) == ([False], (1, 5.0), [False, True])
    assert best(second) == (4, 5.5)
    rows = list(csv.DictReader((second.folder / "eval.csv").open()))
    assert [row["version"] for row in rows] == ["1", "2", "3", "4"]


def test_keep_last_also_limits_the_best_models(manage):
    assert evaluate(manage, 1, 2, 3) == [True] * 3
    assert sorted(path.name for path in manage.writer.checkpoints.iterdir()) == ["best", "step_000000030-best"]


def test_evaluations_and_workers_have_different_seeds(run_graph):
    graph = run_graph(COUNTER, "mode=sync", "worker.num=2", "stop.return=5")
    evaluators = graph.manage.handle.role.evaluators
    evaluated = [seed for evaluator in evaluators for seed in evaluator.seeds]
    workers = [member.handle.role for member in graph.pool.members]
    assert len(set(evaluated)) == len(evaluated) == 4  # two, and two to confirm
    assert not set(evaluated) & {seed for worker in workers for seed in worker.envs.seeds}


def commit(manage, env_steps=64, version=5, **states):
    draft = make_draft(manage.writer.checkpoints / f"step_{env_steps:09d}")
    (draft / "state.replay-0.safetensors").touch()
    counters = COUNTERS | {"counts": {"env_steps": env_steps}}
    sums = {"state.replay-0.safetensors": "its sum"}
    header = LoadParams(version, 50, env_steps)
    message = Draft(str(draft), header, counters, sums, tuple(states))
    return draft, manage.commit(message, PARAMS, *states.values())


def test_commit_completes_a_checkpoint(manage):
    states = {"trainer": {"a": np.ones(2)}, "worker 3": {"b": np.zeros((2, 2))}}
    draft, folder = commit(manage, **states)
    assert folder == str(manage.writer.checkpoints / "step_000000064")
    manifest = read_manifest(manage.writer.checkpoints / "last")
    names = {"state.trainer.safetensors", "state.worker-3.safetensors", "state.orchestrator.json"}
    assert manifest["sha256"].keys() == names | {"state.replay-0.safetensors", "model.safetensors"}
    assert (manifest["version"], manifest["sha256"]["state.replay-0.safetensors"]) == (5, "its sum")
    arrays = read_arrays(manage.writer.checkpoints / "last", "state.worker-3.safetensors", manifest)
    assert {name: array.shape for name, array in arrays.items()} == {"b": (2, 2)}
    assert json.loads((manage.writer.checkpoints / "last" / "state.orchestrator.json").read_text()) == COUNTERS
    assert not draft.exists()
    for name in ("step_000000128", "step_000000128-v5"):  # the second has the same position
        commit(manage, env_steps=128, **states)
        assert sorted(path.name for path in manage.writer.checkpoints.iterdir()) == ["last", name]


@pytest.mark.parametrize(("spare", "is_saved"), [(0, True), (-1, False)])
def test_commit_needs_space_for_the_arrays_and_a_megabyte(manage, monkeypatch, spare, is_saved):
    state, needed = {"a": np.zeros(5 * 2**17)}, PARAMS.nbytes + 5 * 2**20 + 2**20
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed + spare))
    draft, answer = commit(manage, trainer=state)
    if is_saved:
        assert answer == str(manage.writer.checkpoints / "step_000000064")
        return
    assert (answer.errno, answer.filename) == (errno.ENOSPC, str(draft))
    assert "6 MB are needed, 6 MB are free" in str(answer)
    assert list(manage.writer.checkpoints.iterdir()) == []  # no draft is left


def test_manage_holds_a_shared_lock_on_the_folder(manage):
    lock(manage.folder / MANAGE_LOCK, shared=True).close()
    with pytest.raises(BlockingIOError):
        lock(manage.folder / MANAGE_LOCK)


def test_save_writes_a_model_beside_existing_ones(manage):
    header = LoadParams(5, 50, 64)
    folders = [manage.save(header, PARAMS) for _ in range(2)]
    assert folders == [str(manage.writer.checkpoints / name) for name in ("step_000000064", "step_000000064-v5")]
    assert read_manifest(manage.writer.checkpoints / "step_000000064-v5")["version"] == 5


def test_hyperparameters_have_the_configs_keys():
    config = make_config(*TINY, COUNTER, "stop.return=5", "seed=7")
    flat = hyperparameters(config)
    assert (flat["seed"], flat["algo.lr"]) == (7, config.algo.lr)
    assert flat["stop.return"] == 5.0  # return_ in Python
    assert flat["network.hidden"] == str(config.network.hidden)
    assert flat["logger.tensorboard"] is False
    assert all(isinstance(value, bool | int | float | str) for value in flat.values())


def test_close_returns_the_last_problems(manage):
    manage.records.warn("a problem")
    assert manage.close("done") == ["a problem"]


def test_recorders_end_well_before_the_orchestrators_limit():
    assert records.CLOSE_S <= orchestrator.CLOSE_S - 2


def test_equal_weights_give_equal_scores_and_other_weights_other_ones():
    evaluator, params, _ = make()
    first, other, again = (evaluator.evaluate(vector) for vector in (params, -2 * params, params))
    np.testing.assert_array_equal(first.returns, again.returns)
    assert not np.array_equal(first.returns, other.returns)
