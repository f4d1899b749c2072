"""Probes of one step whose right answer is in a vector."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from drl_cli.types import Array

Info = dict[str, Any]


class Reach(gymnasium.Env[Array, Array]):
    """One-step problem with a known answer: the best action is the observation, the reward -(a - o)^2."""

    def __init__(self) -> None:
        self.observation_space = Box(-0.8, 0.8, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self.goal.copy(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        reward = -float((action[0] - self.goal[0]) ** 2)
        return self.goal.copy(), reward, True, False, {}


class Scaled(Reach):
    """Reach in unfortunate units: observations around 500, 1000 times as wide, rewards 1000 times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(-300.0, 1300.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        obs, info = super().reset(seed=seed, options=options)
        return 1000 * obs + 500, info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = super().step(action)
        return 1000 * obs + 500, 1000 * reward, terminated, truncated, info


class Choose(gymnasium.Env[Array, np.int64]):
    """Discrete probe: the observation is one-hot, the rewarded choice is its index; choices start at 3."""

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3, start=3)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.goal = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.goal], {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        return np.eye(3, dtype=np.float32)[self.goal], float(action - 3 == self.goal), True, False, {}


class Switches(gymnasium.Env[Array, Array]):
    """Choices of two components, of three from 1 and of two from 5: the observation has a one-hot for each.

    The reward is the share of the components that are right: at best 1; 5/12 at random.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (5,), np.float32)
        self.action_space = MultiDiscrete([3, 2], start=[1, 5])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.goal = self.np_random.integers([3, 2])
        return self._obs(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        return self._obs(), float((action - [1, 5] == self.goal).mean()), True, False, {}

    def _obs(self) -> Array:
        return np.concatenate([np.eye(3)[self.goal[0]], np.eye(2)[self.goal[1]]]).astype(np.float32)


class Masked(gymnasium.Env[Any, Any]):
    """Which of four choices is the best one is in the observation, one-hot; it and another one are allowed.

    The best gives 1, the other one 0, and one that is not allowed -1: at best 1; 0.5 for a policy that looks at nothing
    but the mask, and never -1. The mask is in `info`, or (`part`) a part of the observation beside `goal`. With
    `components` there are two such choices at once, as one MultiDiscrete, and the reward is their mean.
    """

    def __init__(self, part: bool = False, components: bool = False) -> None:
        self.num, self.part = 1 + components, part
        goal = Box(0.0, 1.0, (4 * self.num,), np.float32)
        self.observation_space = Dict(action_mask=MultiBinary(4 * self.num), goal=goal) if part else goal
        self.action_space = MultiDiscrete([4, 4]) if components else Discrete(4)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.goal = self.np_random.integers(4, size=self.num)
        self.other = (self.goal + self.np_random.integers(1, 4, self.num)) % 4
        return self._obs()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        rewards = np.where(action == self.goal, 1.0, np.where(action == self.other, 0.0, -1.0))
        obs, info = self._obs()
        return obs, float(rewards.mean()), True, False, info

    def _obs(self) -> tuple[Any, Info]:
        goal, choices = np.eye(4, dtype=np.float32)[self.goal], np.eye(4, dtype=np.int8)
        mask = (choices[self.goal] | choices[self.other]).ravel()
        return ({"action_mask": mask, "goal": goal.ravel()}, {}) if self.part else (goal.ravel(), {"action_mask": mask})
