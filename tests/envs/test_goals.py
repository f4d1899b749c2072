import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from drl_cli.envs.config import EnvConfig, EnvError, EnvFault
from drl_cli.envs.goals import GoalOutcome


class Goal(gymnasium.Env):
    """Walks towards a goal. Like gymnasium-robotics' mazes, `compute_terminated` accepts only single goals."""

    part = Box(-9, 9, (2,), np.float64)
    observation_space, action_space = Dict(achieved_goal=part, desired_goal=part), Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = np.zeros(2), self.np_random.uniform(-1, 1, 2)
        return {"achieved_goal": self.place, "desired_goal": self.goal}, {}

    def step(self, action):
        self.place = self.place + 0.3 * action
        reward = self.compute_reward(self.place, self.goal, {})
        ended = self.compute_terminated(self.place, self.goal, {})
        return {"achieved_goal": self.place, "desired_goal": self.goal}, reward, ended, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -2 * np.linalg.norm(achieved_goal - desired_goal, axis=-1)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= 0.45)


class Single(Goal):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return -max(abs(achieved_goal[0] - desired_goal[0]), abs(achieved_goal[1] - desired_goal[1]))


class Shaped(Goal):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + 0.5, *rest


class NoReward(Goal):
    compute_reward = None

    def step(self, action):
        return {"achieved_goal": self.place, "desired_goal": self.goal}, 0.0, False, False, {}


class NeedsInfo(Goal):
    def step(self, action):
        return {"achieved_goal": self.place, "desired_goal": self.goal}, -1.0, False, False, {"cost": 1.0}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -info["cost"]


for kind in (Goal, Single, Shaped, NoReward, NeedsInfo):
    gymnasium.register(f"test_goals/{kind.__name__}-v0", entry_point=kind)


def config(id, **options):
    return EnvConfig("goals", id, {}, None, options.pop("reward_scale", 1.0), "auto", False, False, **options)


def made(kind, **options):
    return GoalOutcome(config(f"test_goals/{kind.__name__}-v0", **options))


def test_batches_of_bits():
    outcome = GoalOutcome(config("drl_cli.envs.probes:BitFlip-v0"))
    goals = np.eye(20, dtype=np.float32)
    reward, terminated = outcome(goals, goals[[0, 2, 2]].repeat([1, 2, 17], 0))
    assert (reward.tolist(), terminated.tolist()) == ([1, 0, 1] + [0] * 17, [True, False, True] + [False] * 17)
    assert (reward.dtype, terminated.dtype) == (np.float32, np.bool_)
    assert outcome.reward.__name__ == "together"
    assert outcome.terminated.__name__ == "together"


def test_functions_of_single_goals_are_called_for_each_goal():
    outcome = made(Goal)
    assert (outcome.reward.__name__, outcome.terminated.__name__) == ("together", "singly")
    assert made(Single).reward.__name__ == "singly"
    achieved, desired = np.zeros((3, 2), np.float32), np.array([[0, 0.4], [3, 4], [0.3, 0]], np.float32)
    reward, terminated = outcome(achieved, desired)
    np.testing.assert_allclose(reward, [-0.8, -10, -0.6])
    assert terminated.tolist() == [True, False, True]
    np.testing.assert_allclose(made(Single)(achieved, desired)[0], [-0.4, -4, -0.3])


def test_rewards_have_the_units_of_replay():
    achieved, desired = np.zeros((2, 2), np.float32), np.array([[3, 4], [0, 0.5]], np.float32)
    reward, _ = made(Goal, reward_scale=0.1, reward_clip=2.0)(achieved, desired)
    np.testing.assert_allclose(reward, [-0.2, -0.1])


@pytest.mark.parametrize(
    ("kind", "problem"),
    [(NoReward, "has no compute_reward(achieved_goal, desired_goal, info)"), (Shaped, "compute_reward gives")],
)
def test_environments_that_cannot_judge_goals_are_refused(kind, problem):
    with pytest.raises(EnvError) as error:
        made(kind)
    assert problem in str(error.value)


def test_a_function_that_raises_is_named():
    with pytest.raises(EnvFault, match="compute_reward raised KeyError"):
        made(NeedsInfo)
