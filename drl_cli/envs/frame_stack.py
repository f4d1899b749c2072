"""Whether an environment's images are stacks of frames, and how."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import gymnasium
import numpy as np

from drl_cli.types import Array, FrameStack

STEPS, ENOUGH, LARGEST_K = 64, 8, 16


def find_frame_stack(env: "gymnasium.Env[Any, Any]") -> FrameStack:
    """The stack along the first or last axis in which each observation continues the one before; k = 1 without any.

    It is found by taking random steps. Memory is all that depends on it: replay shares only frames that are equal.
    """
    shape = env.observation_space.shape
    assert shape is not None
    if len(shape) < 3:
        return FrameStack(-1, 1)
    pairs = list(islice(_changes(env), ENOUGH))
    fits = bool(pairs) and all(obs.shape == shape for pair in pairs for obs in pair)
    for axis in (-1, 0) if fits else ():
        for k in range(min(LARGEST_K, shape[axis]), 1, -1):
            if shape[axis] % k == 0 and all(_continues(*pair, axis, k) for pair in pairs):
                return FrameStack(axis, k)
    return FrameStack(-1, 1)


def _changes(env: "gymnasium.Env[Any, Any]") -> Iterator[tuple[Array, Array]]:
    """Observations that differ from the one before them in their episode, with it."""
    env.action_space.seed(0)
    obs, seed = None, 0
    for _ in range(STEPS):
        if obs is None:
            obs, seed = np.array(env.reset(seed=seed)[0]), seed + 1
        raw, _, terminated, truncated, _ = env.step(env.action_space.sample())
        next_obs = np.array(raw)
        if not np.array_equal(next_obs, obs):
            yield obs, next_obs
        obs = None if terminated or truncated else next_obs


def _continues(obs: Array, next_obs: Array, axis: int, k: int) -> bool:
    """Whether the next observation begins with all but the first of the k frames of this one."""
    frames, next_frames = np.split(obs, k, axis), np.split(next_obs, k, axis)
    return all(np.array_equal(frame, same) for frame, same in zip(frames[1:], next_frames, strict=False))
