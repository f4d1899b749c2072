"""Goal environments from outside the package whose rewards hindsight replay can't compute."""

import os

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict


class NoReward(gymnasium.Env):
    """Has goals, and no function that computes rewards."""

    goal = Box(-1, 1, (2,), np.float32)
    observation_space, action_space = Dict(achieved_goal=goal, desired_goal=goal), Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return dict.fromkeys(self.observation_space, np.zeros(2, np.float32)), {}

    def step(self, action):
        return dict.fromkeys(self.observation_space, np.zeros(2, np.float32)), 0.0, False, False, {}


class Raises(NoReward):
    def compute_reward(self, achieved_goal, desired_goal, info):
        raise RuntimeError("no goals today")


class Aborts(NoReward):
    def compute_reward(self, achieved_goal, desired_goal, info):
        os._exit(3)
