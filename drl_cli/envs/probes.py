"""Tiny environments that test the system: use them as `env=drl_cli.envs.probes:Counter-v0`."""

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from drl_cli.types import Array, State

Info = dict[str, Any]


class Counter(gymnasium.Env[Array, Array]):
    """Every observation says who and when it is: [environment, episode, step]; the reward is the step's number.

    Episodes differ in length (by the episode's number), even ones terminate, odd ones are truncated. A row that is
    lost, doubled, reordered or crosses an episode shows in the numbers. `save_state` and `load_state` have a resumed
    run go on counting (envs/episode.py).
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

    def save_state(self) -> State:
        return {"who": np.array([self.tag, self.episode])}

    def load_state(self, state: State) -> None:
        self.tag, self.episode = state["who"].tolist()

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


class Faulty(Counter):
    """A Counter that goes wrong at step `at` of its life, or at a random one of the first 200 (None).

    `fault`: "raise"; "nan_obs"; "inf_reward"; "shape", the observation gets one more value; "hang", for an hour;
    "reset", which raises there, at the first one from that step on. With a `file`, which the first instance that goes
    wrong creates, it happens once over all instances.
    """

    def __init__(self, fault: str = "raise", at: int | None = 100, file: str = "", **kwargs: int) -> None:
        super().__init__(**kwargs)
        self.fault, self.at, self.file, self.life = fault, at, file, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        if self.at is None:
            self.at = int(np.random.default_rng(seed).integers(1, 201))
        if self.fault == "reset" and self.life >= self.at and self._is_first():
            raise RuntimeError(f"probe crashed at reset after step {self.life}")
        return super().reset(seed=seed, options=options)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.life += 1
        if self.life == self.at and self.fault != "reset" and self._is_first():
            if self.fault == "raise":
                raise RuntimeError(f"probe crashed at step {self.at}")
            if self.fault == "hang":
                time.sleep(3600.0)
            obs = {"nan_obs": obs * np.float32(np.nan), "shape": np.append(obs, np.float32(0))}.get(self.fault, obs)
            reward = np.inf if self.fault == "inf_reward" else reward
        return obs, reward, terminated, truncated, info

    def save_state(self) -> State:
        return {**super().save_state(), "life": np.array([self.life, 0 if self.at is None else self.at])}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.life, at = state["life"].tolist()
        self.at = at or None

    def _is_first(self) -> bool:
        try:
            if self.file:
                Path(self.file).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


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


class Frames(gymnasium.Env[Array, np.int64]):
    """Counter's rules as images: `k` frames of `size` x `size` along `axis`, the first of an episode k times.

    The first bytes of a frame say who and when it is (`stamp`); below them a square moves over a slope.
    """

    def __init__(self, axis: int = -1, k: int = 4, size: int = 84, base_length: int = 20, spread: int = 41) -> None:
        shape = (k, size, size) if axis == 0 else (size, size, k)
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(3)
        self.axis, self.k, self.size, self.base_length, self.spread = axis, k, size, base_length, spread
        self.slope = (np.arange(size * size) // size).astype(np.uint8).reshape(size, size)
        self.tag, self.episode, self.count = -1, -1, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        if seed is not None:
            self.tag = seed % 2**31
        self.episode, self.count = self.episode + 1, 0
        self.obs = np.stack([self._frame()] * self.k, self.axis)
        return self.obs, {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        self.count += 1
        obs, shift = np.empty_like(self.obs), 1 if self.axis else self.size**2
        obs.ravel()[:-shift] = self.obs.ravel()[shift:]  # moves all frames on by one, along either axis
        obs[-1 if self.axis == 0 else (..., -1)] = self._frame()
        self.obs = obs
        ended = self.count >= self.base_length + self.episode * 7 % self.spread
        even = self.episode % 2 == 0
        return self.obs, float(self.count), ended and even, ended and not even, {}

    def save_state(self) -> State:
        return {"who": np.array([self.tag, self.episode])}

    def load_state(self, state: State) -> None:
        self.tag, self.episode = state["who"].tolist()

    def _frame(self) -> Array:
        frame = self.slope.copy()
        y, x = 1 + self.count * 3 % (self.size - 9), self.count * 5 % (self.size - 8)
        frame[y : y + 8, x : x + 8] = 255
        frame.ravel()[:12] = np.array([self.tag, self.episode, self.count], np.int32).view(np.uint8)
        return frame


def stamp(frames: Array) -> Array:
    """Environment, episode and step `[..., 3]` of frames `[..., size, size]` of Frames-v0."""
    flat = np.ascontiguousarray(frames.reshape(*frames.shape[:-2], -1)[..., :12])
    return flat.view(np.int32)


for _class in (Counter, Reach, Scaled, Forever, Sleeper, Faulty, Choose, Frames):
    gymnasium.register(
        f"{_class.__name__}-v0",
        entry_point=f"drl_cli.envs.probes:{_class.__name__}",
        max_episode_steps=50 if _class is Forever else None,
    )
