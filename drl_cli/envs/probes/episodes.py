"""Probes that test truncation, memory and slow environments."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Discrete

from drl_cli.envs.probes.counters import claim
from drl_cli.types import Array

Info = dict[str, Any]


class Forever(gymnasium.Env[Array, Array]):
    """Each step has reward 1, and episodes are only truncated. With bootstrapping, the value is 1 / (1 - gamma)."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


class Chain(gymnasium.Env[Array, np.int64]):
    """A chain of `num` states with its reward at the far end (Osband et al. 2016, arXiv 1602.04621, section 5).

    An episode begins in state 1 and has `length` steps, by default `num` + 9. In state i, action `right[i]` goes right,
    and the other action goes left; `right` is random, but equal in all environments. Each step that ends in the last
    state has reward 1. Each step that ends in state 0 has reward 0.001, which lures learners to the left. Element i of
    the observation is 1 in state i, else 0. The best return is `length` - `num` + 3, and only going left gives
    0.001 * `length`.
    """

    def __init__(self, num: int = 50, length: int | None = None) -> None:
        self.observation_space = Box(0.0, 1.0, (num,), np.float32)
        self.action_space = Discrete(2)
        self.num, self.right = num, np.random.default_rng(0).integers(2, size=num)
        self.length = num + 9 if length is None else length

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        self.state, self.count = 1, 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        step = 1 if action == self.right[self.state] else -1
        self.state = min(max(self.state + step, 0), self.num - 1)
        self.count += 1
        reward = 1.0 if self.state == self.num - 1 else 0.001 if self.state == 0 else 0.0
        return self._obs(), reward, False, self.count == self.length, {}

    def _obs(self) -> Array:
        obs = np.zeros(self.num, np.float32)
        obs[self.state] = 1.0
        return obs


class Cue(gymnasium.Env[Array, np.int64]):
    """The first observation shows a cue of 0 or 1. The policy has to choose the same number `delay` steps later.

    Observations are [cue is 0, cue is 1, choose now]. The final reward is 1 for the right choice, else 0. The best
    policy reaches 1, and a policy without memory reaches 0.5.
    """

    def __init__(self, delay: int = 10) -> None:
        self.observation_space = Box(0.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(2)
        self.delay = delay

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.cue, self.count = int(self.np_random.integers(2)), 0
        return np.array([self.cue == 0, self.cue == 1, self.delay == 0], np.float32), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        is_last = self.count == self.delay
        self.count += 1
        obs = np.array([0, 0, self.count == self.delay], np.float32)
        return obs, float(is_last and action == self.cue), is_last, False, {}


class Positions(gymnasium.ObservationWrapper[Array, int | Array, Array]):
    """CartPole without velocities in its observations. A policy with memory can derive the velocities."""

    metadata = CartPoleEnv.metadata  # Gymnasium 1.3 asks the class for it, for which the wrapper has only a property

    def __init__(self) -> None:
        super().__init__(CartPoleEnv())
        seen = self.env.observation_space
        assert isinstance(seen, Box)
        self.observation_space = Box(seen.low[[0, 2]], seen.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        positions: Array = observation[[0, 2]]
        return positions


class Sleeper(gymnasium.Env[Array, Array]):
    """An environment that sleeps for `step_s` seconds in each step.

    If `slow_file` is set, the first instance to make a step creates this file and sleeps `slow_factor` times as long.
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
            self.step_s *= self.slow_factor if claim(self.slow_file) else 1.0
            self.slow_file = ""
        time.sleep(self.step_s)
        self.count += 1
        return np.zeros(2, np.float32), 0.0, False, self.count >= self.length, {}
