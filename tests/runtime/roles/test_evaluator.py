import gymnasium
import numpy as np
import pytest
from graphs import make_config
from gymnasium.spaces import Box

from drl_cli.algos.lookup import load_algorithm
from drl_cli.api import Context
from drl_cli.envs.make import read_spec
from drl_cli.runtime.roles.evaluator import Evaluator, Score
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
    config = make_config(f"env={env}", "network.hidden=[8]", *overrides)
    spec = read_spec(config.env)
    module = load_algorithm(config.algo.name)
    params = module.Algorithm(config.algo, config.network, spec, 0, Context(torch.device("cpu"))).policy_params()
    policy = module.Policy(config.algo, config.network, spec, 0)
    policy.load(params)
    return Evaluator(config, spec, list(seeds)), params, policy


def test_every_episode_counts_once_with_its_own_length_and_return():
    evaluator, params, policy = make()
    score = evaluator.evaluate(params)
    assert score.lengths.tolist() == [1, 2, 3, 4, 5]
    assert score.cut == 0
    for seed in range(5):
        obs = np.array([[seed, count] for count in range(seed + 1)], np.float32)
        assert score.returns[seed] == pytest.approx(policy.greedy(obs).sum(), abs=1e-5)


def test_equal_weights_give_equal_scores_and_other_weights_other_ones():
    evaluator, params, _ = make()
    first, other, again = (evaluator.evaluate(vector) for vector in (params, -2 * params, params))
    np.testing.assert_array_equal(first.returns, again.returns)
    assert not np.array_equal(first.returns, other.returns)


def test_reported_returns_are_unscaled():
    plain, params, _ = make()
    scaled, *_ = make("env.reward_scale=0.01")
    np.testing.assert_array_equal(plain.evaluate(params).returns, scaled.evaluate(params).returns)


def test_long_episodes_are_cut_and_counted():
    evaluator, params, _ = make("manage.max_episode_steps=3")
    score = evaluator.evaluate(params)
    assert score.lengths.tolist() == [1, 2, 3, 3, 3]
    assert score.cut == 2


def test_truncation_ends_an_episode():
    evaluator, params, _ = make(env="drl_cli.envs.probes:Forever-v0", seeds=(0, 1))
    score = evaluator.evaluate(params)
    assert score.lengths.tolist() == [50, 50]
    assert score.returns.tolist() == [50.0, 50.0]
    assert score.cut == 0


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
    spec = read_spec(config.env)
    module = load_algorithm("dqn")
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
