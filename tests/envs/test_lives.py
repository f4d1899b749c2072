import gymnasium
import numpy as np
import pytest
from graphs import TINY, make_config
from gymnasium.spaces import Box, Discrete
from policies import some_params

from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.runtime.roles.worker import Worker
from drl_cli.types import LoadParams


class Lives(gymnasium.Env):
    """Episodes of three lives with four steps each, 10 points per step; the observation is the number of steps."""

    def __init__(self, episodic_life=True, fails=False, points=10.0):
        self.observation_space, self.action_space = Box(0, 100, (1,), np.float32), Discrete(2)
        self.episodic_life, self.fails, self.points = episodic_life, fails, points

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.fails and self.count == 5:
            raise ValueError("broken")
        lost = self.episodic_life and self.count in (4, 8)
        return (
            np.array([self.count], np.float32),
            self.points,
            self.count == 12,
            False,
            {"life_lost": True} if lost else {},
        )


gymnasium.register("TestLives-v0", Lives)


def batch(num=2, max_rebuilds=0, **kwargs):
    config = EnvConfig("lives", "TestLives-v0", kwargs, None, 1.0, "auto", False, False)
    return EnvBatch(config, read_spec(config), list(range(num)), max_rebuilds)


def test_a_lost_life_terminates_but_the_episode_goes_on():
    envs, zeros = batch(), np.zeros(2, np.int64)
    for count in range(1, 13):
        step = envs.step(zeros)
        assert step.terminated.tolist() == [count % 4 == 0] * 2
        assert not step.truncated.any()
        assert step.next_obs.ravel().tolist() == [count, count]
        assert envs.begun == ([0, 1] if count == 12 else [])
        assert envs.obs.ravel().tolist() == [count % 12] * 2
    assert [(episode.ret, episode.length) for episode in envs.take_news()[0]] == [(120.0, 12)] * 2


def test_an_invalid_step_costs_no_life():
    envs, zeros = batch(max_rebuilds=10, fails=True), np.zeros(2, np.int64)
    steps = [envs.step(zeros) for _ in range(6)]
    assert [step.terminated.all() for step in steps] == [False] * 3 + [True] + [False] * 2
    assert [step.valid.all() for step in steps] == [True] * 4 + [False, True]


def worker(*overrides):
    values = (*TINY, "env=TestLives-v0", "worker.num=1", "worker.envs=1", "worker.block_rows=24", *overrides)
    config = make_config("algo=dqn", "algo.gamma=0.5", *values)
    return Worker(config, read_spec(config.env), 0, 0)


def collected(one):
    header, rows = one.collect(LoadParams(-1, 0, 0, random_actions=True))
    return header.episodes, rows


def test_n_step_windows_end_with_a_life():
    episodes, rows = collected(worker("algo.n_step=3"))
    assert [(episode.ret, episode.length) for episode in episodes] == [(120.0, 12)] * 2
    life = [17.5, 17.5, 15.0, 10.0]  # at a discount of 0.5
    np.testing.assert_allclose(rows["reward"], (life * 6)[: len(rows["reward"])])
    assert rows["discount"].tolist() == ([0.125, 0, 0, 0] * 6)[: len(rows["reward"])]
    assert rows["obs"].ravel().tolist()[:13] == [*range(12), 0]
    assert rows["next_obs"].ravel().tolist()[:12] == [3, 4, 4, 4, 7, 8, 8, 8, 11, 12, 12, 12]


@pytest.mark.parametrize(
    ("overrides", "learned"), [(("env.reward_clip=20",), 10.0), (("env.reward_clip=1", "env.reward_scale=0.5"), 0.5)]
)
@pytest.mark.parametrize("algo", [("algo.n_step=1",), ("algo=ppo", "algo.minibatch_size=8")])
def test_rows_have_clipped_rewards_and_episodes_raw_ones(overrides, learned, algo):
    one = worker(*algo, "worker.block_rows=22", *overrides)
    if "algo=ppo" in algo:  # it has no random actions
        params = 0.0 * some_params(one.config, read_spec(one.config.env))
        header, rows = one.collect(LoadParams(0, 0, 0), params)
        episodes = header.episodes
    else:
        episodes, rows = collected(one)
    assert (set(rows["reward"].tolist()), [episode.ret for episode in episodes]) == ({learned}, [120.0])
    assert one.last.reward.tolist() == [10.0]  # what a policy with a memory is told


def test_rewards_are_clipped_on_both_sides():
    _, rows = collected(worker("algo.n_step=1", "env.reward_clip=2", "+env.kwargs.points=-10"))
    assert set(rows["reward"].tolist()) == {-2.0}


def test_evaluations_do_not_clip_rewards():
    config = make_config("env=TestLives-v0", "algo=dqn", "env.reward_clip=1").env
    assert (config.reward_clip, config.for_evaluation().reward_clip) == (1.0, None)
