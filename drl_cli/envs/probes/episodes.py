"""Probes of many steps: counters, which find mistakes in bookkeeping, and episodes with a known best return."""

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from drl_cli.types import Array, State

Info = dict[str, Any]


class Counter(gymnasium.Env[Any, Any]):
    """The observation is [environment, episode, step], and the reward is the number of the step.

    Episode i has `base_length` + (i mod `spread`) steps. Even episodes terminate; odd episodes are truncated. The
    numbers show whether a row was lost, duplicated, reordered or mixed from two episodes. `save_state` and `load_state`
    let a resumed run continue the count (see envs/stepping/episode.py).
    """

    tags = 2**20
    """The number of an environment is its seed modulo `tags`."""

    def __init__(self, base_length: int = 3, spread: int = 5) -> None:
        self.observation_space = Box(-1.0, 2**24, (3,), np.float32)
        self.action_space = Box(-2.0, 4.0, (1,), np.float32)
        self.base_length, self.spread = base_length, spread
        self.tag, self.episode, self.count = -1, -1, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        if seed is not None:
            self.tag = seed % self.tags
        self.episode, self.count = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action} is outside {self.action_space}")
        self.count += 1
        ended, even = self.count >= self._length(), self.episode % 2 == 0
        return self._obs(), float(self.count), ended and even, ended and not even, {}

    def save_state(self) -> State:
        return {"who": np.array([self.tag, self.episode])}

    def load_state(self, state: State) -> None:
        self.tag, self.episode = state["who"].tolist()

    def _length(self) -> int:
        return self.base_length + self.episode % self.spread

    def _obs(self) -> Array:
        return np.array([self.tag, self.episode, self.count], np.float32)

    def _stamp(self, frame: Array, count: int) -> None:
        """Write environment, episode and step into the first 12 bytes of a frame."""
        frame.ravel()[:12] = np.array([self.tag, self.episode, count], np.int32).view(np.uint8)


class Tree(Counter):
    """A Counter with nested observations. Each part contains the environment, the episode or the step.

    `who` is the observation of Counter. `camera` stacks the two newest frames of 6 x 4 bytes along the last axis; the
    first bytes of a frame contain the environment, episode and step. The Tuple `inner` has three parts: the step as a
    Discrete that starts at -5, [environment mod 1000, episode, step] as a MultiDiscrete, and the lowest 4 bits of the
    step. Actions are a Dict of a Box and a Tuple of Boxes; with `discrete`, they have all kinds of discrete choices. An
    action outside its space raises ValueError.
    """

    def __init__(self, base_length: int = 3, spread: int = 5, discrete: bool = False) -> None:
        super().__init__(base_length, spread)
        longest = base_length + spread
        inner = (Discrete(longest, start=-5), MultiDiscrete([1000, 10**6, longest]), MultiBinary(4))
        camera = Box(0, 255, (6, 4, 2), np.uint8)
        self.observation_space = Dict(camera=camera, inner=Tuple(inner), who=self.observation_space)
        boxes: Any = (Box(0.0, np.array([[1.0], [3.0]]), (2, 1), np.float64),)
        choices: Any = (MultiDiscrete([3, 2], start=[1, 7]), MultiBinary(2))
        move: Any = Discrete(4, start=-2) if discrete else Box(-2.0, 4.0, (1,), np.float32)
        self.action_space = Dict(move=move, turn=Tuple(choices if discrete else boxes))

    def _obs(self) -> Any:
        camera = np.stack([self._frame(max(0, self.count - 1)), self._frame(self.count)], -1)
        bits = np.array([self.count >> j & 1 for j in range(4)], np.int8)
        choices = np.array([self.tag % 1000, self.episode, self.count])
        inner = (np.int64(self.count - 5), choices, bits)
        return {"camera": camera, "inner": inner, "who": super()._obs()}

    def _frame(self, count: int) -> Array:
        frame = np.zeros((6, 4), np.uint8)
        self._stamp(frame, count)
        frame[3:] = 255
        return frame


class Faulty(Counter):
    """A Counter that fails at step `at`, counted over all episodes. If `at` is None, `at` is drawn from 1 to 200.

    `fault` is "raise", "nan_obs", "inf_reward", "shape" (the observation has one value too many), "hang" (for an hour)
    or "reset" (the first reset after step `at` raises). If `file` is set, the first instance that fails creates this
    file, and no other instance fails.
    """

    def __init__(self, fault: str = "raise", at: int | None = 100, file: str = "", **kwargs: int) -> None:
        super().__init__(**kwargs)
        self.fault, self.at, self.file, self.life = fault, at, file, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        if self.at is None:
            self.at = int(np.random.default_rng(seed).integers(1, 201))
        if self.fault == "reset" and self.life >= self.at and claim(self.file):
            raise RuntimeError(f"probe crashed at reset after step {self.life}")
        return super().reset(seed=seed, options=options)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.life += 1
        if self.life == self.at and self.fault != "reset" and claim(self.file):
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


class Frames(Counter):
    """A Counter whose observations are images: the newest `k` frames of `size` x `size` pixels, stacked along `axis`.

    An episode begins with k equal frames. The first 12 bytes of a frame contain the environment, episode and step (see
    `stamp`), and a square moves over the rest of the frame. Episode i has `base_length` + (7 i mod `spread`) steps.
    """

    tags = 2**31

    def __init__(self, axis: int = -1, k: int = 4, size: int = 84, base_length: int = 20, spread: int = 41) -> None:
        super().__init__(base_length, spread)
        shape = (k, size, size) if axis == 0 else (size, size, k)
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(3)
        self.axis, self.k, self.size = axis, k, size
        self.slope = (np.arange(size * size) // size).astype(np.uint8).reshape(size, size)

    def _length(self) -> int:
        return self.base_length + self.episode * 7 % self.spread

    def _obs(self) -> Array:
        if self.count == 0:
            self.obs = np.stack([self._frame()] * self.k, self.axis)
            return self.obs
        obs, shift = np.empty_like(self.obs), 1 if self.axis else self.size**2
        obs.ravel()[:-shift] = self.obs.ravel()[shift:]  # moves all frames by one position, for either axis
        obs[-1 if self.axis == 0 else (..., -1)] = self._frame()
        self.obs = obs
        return obs

    def _frame(self) -> Array:
        frame = self.slope.copy()
        y, x = 1 + self.count * 3 % (self.size - 9), self.count * 5 % (self.size - 8)
        frame[y : y + 8, x : x + 8] = 255
        self._stamp(frame, self.count)
        return frame


def claim(file: str) -> bool:
    """Create the file and return True; return False if the file exists already. If the name is empty, return True."""
    try:
        if file:
            Path(file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def stamp(frames: Array) -> Array:
    """Return the environment, episode and step `[..., 3]` in frames `[..., size, size]` of the probe Frames-v0."""
    flat = np.ascontiguousarray(frames.reshape(*frames.shape[:-2], -1)[..., :12])
    return flat.view(np.int32)


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
