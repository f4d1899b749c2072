"""Tiny environments that test the system: use them as `env=drl_cli.envs.probes:Counter-v0`."""

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from drl_cli.types import Array

Info = dict[str, Any]


class Counter(gymnasium.Env[Array, Array]):
    """Every observation says who and when it is: [environment, episode, step]; the reward is the step's number.

    Episodes differ in length (by the episode's number), even ones terminate, odd ones are truncated. A row that is
    lost, doubled, reordered or crosses an episode shows in the numbers.
    """

    def __init__(self, base_length: int = 3, spread: int = 5) -> None:
        self.observation_space = Box(-1.0, 2**24, (3,), np.float32)
        self.action_space = Box(-2.0, 4.0, (1,), np.float32)
        self.base_length, self.spread = base_length, spread
        self.tag, self.episode, self.count = -1, -1, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        if seed is not None:
            self.tag = seed % 2**20
        self.episode, self.count = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action} is outside {self.action_space}")
        self.count += 1
        ended = self.count >= self.base_length + self.episode % self.spread
        even = self.episode % 2 == 0
        return self._obs(), float(self.count), ended and even, ended and not even, {}

    def _obs(self) -> Array:
        return np.array([self.tag, self.episode, self.count], np.float32)


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


class Forever(gymnasium.Env[Array, Array]):
    """Reward 1 at every step and only truncation: the value is 1 / (1 - gamma) if and only if truncation bootstraps."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


class Sleeper(gymnasium.Env[Array, Array]):
    """Takes `step_s` per step without using the processor.

    The first instance that steps, and so creates `slow_file` where one is named, takes `slow_factor` times as long.
    """

    def __init__(
        self, step_s: float = 0.001, length: int = 100, slow_file: str = "", slow_factor: float = 10.0
    ) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.length, self.count, self.step_s = length, 0, step_s
        self.slow_file, self.slow_factor = slow_file, slow_factor

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        if self.slow_file:
            self._claim()
        time.sleep(self.step_s)
        self.count += 1
        return np.zeros(2, np.float32), 0.0, False, self.count >= self.length, {}

    def _claim(self) -> None:
        try:
            Path(self.slow_file).touch(exist_ok=False)
            self.step_s *= self.slow_factor
        except FileExistsError:
            pass
        self.slow_file = ""


class Crash(Counter):
    """A Counter that raises at step `at` of its life."""

    def __init__(self, at: int = 100) -> None:
        super().__init__()
        self.at, self.life = at, 0

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        self.life += 1
        if self.life == self.at:
            raise RuntimeError(f"probe crashed at step {self.at}")
        return super().step(action)


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


for _class in (Counter, Reach, Scaled, Forever, Sleeper, Crash, Choose):
    gymnasium.register(
        f"{_class.__name__}-v0",
        entry_point=f"drl_cli.envs.probes:{_class.__name__}",
        max_episode_steps=50 if _class is Forever else None,
    )
