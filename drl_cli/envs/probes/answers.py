"""Probes with one step per episode, in which the best action follows from a vector."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from drl_cli.types import Array

Info = dict[str, Any]


class OneStep(gymnasium.Env[Any, Any]):
    """Base of environments whose episodes end after one step. A subclass defines `draw` and may override `reward`."""

    goal: Any  # Any: a number or an array, depending on the subclass

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.info: Info = {}
        self.obs = self.draw()
        return self.obs, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        return self.obs, self.reward(action), True, False, self.info

    def draw(self) -> Any:
        """Draw a new problem and return its observation."""
        raise NotImplementedError

    def reward(self, action: Any) -> float:
        """Return the reward of an action: 1 if the action equals `goal`, else 0."""
        return float(action == self.goal)


class Reach(OneStep):
    """The best action a equals the observation o; the reward is -(a - o)^2."""

    def __init__(self) -> None:
        self.observation_space = Box(-0.8, 0.8, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def draw(self) -> Any:
        self.goal = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self.goal.copy()

    def reward(self, action: Array) -> float:
        return -float((action[0] - self.goal[0]) ** 2)


class Scaled(Reach):
    """The probe `Reach` with observations 1000 o + 500 and rewards multiplied by 1000, to test normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(-300.0, 1300.0, (1,), np.float32)

    def draw(self) -> Any:
        return 1000 * super().draw() + 500

    def reward(self, action: Array) -> float:
        return 1000 * super().reward(action)


class Choose(OneStep):
    """The observation is a one-hot vector `[3]`. The reward is 1 for the choice 3 + (index of the 1), else 0."""

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3, start=3)

    def draw(self) -> Any:
        self.goal = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.goal]

    def reward(self, action: np.int64) -> float:
        return super().reward(action - 3)


class Switches(OneStep):
    """An action has two components: a choice of 1, 2 or 3, and a choice of 5 or 6.

    The observation has a one-hot vector for each component. The reward is the fraction of right components: at most 1,
    and 5/12 on average for random actions.
    """

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (5,), np.float32)
        self.action_space = MultiDiscrete([3, 2], start=[1, 5])

    def draw(self) -> Any:
        first, second = self.goal = self.np_random.integers([3, 2])
        return np.concatenate([np.eye(3)[first], np.eye(2)[second]]).astype(np.float32)

    def reward(self, action: Array) -> float:
        return float((action - [1, 5] == self.goal).mean())


class Masked(OneStep):
    """A one-hot observation shows the best of four choices. The legal-action mask allows this choice and one other.

    The reward is 1 for the best choice, 0 for the other legal choice, and -1 for an illegal choice. The best policy
    reaches 1, and a policy that sees only the mask reaches 0.5. The mask is in `info`; with `part`, the mask is in the
    observation beside `goal`. With `components`, an action makes two such choices, and the reward is the mean of both
    rewards.
    """

    def __init__(self, part: bool = False, components: bool = False) -> None:
        self.num, self.part = 1 + components, part
        goal = Box(0.0, 1.0, (4 * self.num,), np.float32)
        self.observation_space = Dict(action_mask=MultiBinary(4 * self.num), goal=goal) if part else goal
        self.action_space = MultiDiscrete([4, 4]) if components else Discrete(4)

    def draw(self) -> Any:
        self.goal = self.np_random.integers(4, size=self.num)
        self.other = (self.goal + self.np_random.integers(1, 4, self.num)) % 4
        goal, choices = np.eye(4, dtype=np.float32)[self.goal].ravel(), np.eye(4, dtype=np.int8)
        mask = {"action_mask": (choices[self.goal] | choices[self.other]).ravel()}
        if self.part:
            return {**mask, "goal": goal}
        self.info = mask
        return goal

    def reward(self, action: Any) -> float:
        rewards = np.where(action == self.goal, 1.0, np.where(action == self.other, 0.0, -1.0))
        return float(rewards.mean())
