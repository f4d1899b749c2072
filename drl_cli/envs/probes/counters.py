"""Probes of the data path: their observations say who made them and when."""

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from drl_cli.types import Array, State

Info = dict[str, Any]


class Counter(gymnasium.Env[Any, Any]):
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


class Tree(Counter):
    """Counter's rules with observations of many parts, nested, each of which says who and when it is.

    `who` is Counter's observation; `camera` the newest two frames of 6 x 4 bytes (`stamp`), along the last axis; in the
    Tuple `inner` there are the step (a Discrete that starts at -5), [environment mod 1000, episode, step] (choices) and
    the step's lowest bits. Actions are a Dict of a Box and a Tuple of Boxes, or (`discrete`) of all kinds of choices;
    one outside its space raises.
    """

    def __init__(self, base_length: int = 3, spread: int = 5, discrete: bool = False) -> None:
        super().__init__(base_length, spread)
        longest = base_length + spread
        inner = (Discrete(longest, start=-5), MultiDiscrete([1000, 10**6, longest]), MultiBinary(4))
        camera = Box(0, 255, (6, 4, 2), np.uint8)
        self.observation_space = Dict(camera=camera, inner=Tuple(inner), who=self.observation_space)
        boxes: Any = (Box(0.0, np.array([[1.0], [3.0]]), (2, 1), np.float64),)  # Any: spaces of any kind
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
        frame.ravel()[:12] = np.array([self.tag, self.episode, count], np.int32).view(np.uint8)
        frame[3:] = 255
        return frame


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
