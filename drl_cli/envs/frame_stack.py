"""Detect stacks of frames in image observations."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from drl_cli.envs.actions import ActionMap
from drl_cli.envs.config import EnvFault
from drl_cli.envs.observations import ObsMap, Parts
from drl_cli.envs.wrap import StackFrames
from drl_cli.types import MASK, Array, EnvSpec, FrameStack, leaves

STEPS, ENOUGH, LARGEST_K = 64, 8, 16
Pair = tuple[Array, Array]


def find_frame_stacks(env: "gymnasium.Env[Any, Any]", spec: EnvSpec) -> dict[str, FrameStack]:
    """Return the frame stack of each image part by path. An image that is not a stack has k = 1.

    If the environment has an attribute `frame_stack`, or `env.frame_stack` is set, return this stack. Otherwise take
    random steps, and look for an axis (first or last) along which each observation repeats all but the oldest frame of
    the previous observation. A wrong result only costs memory, because replay shares only frames that are equal.
    """
    named: Any = getattr(env.unwrapped, "frame_stack", None)  # set by Atari: a game's image can stay the same for long
    if isinstance(named, FrameStack) and env.observation_space == env.unwrapped.observation_space:
        return {"": named}
    if isinstance(env, StackFrames):
        return {
            path: env.stack for path, part in leaves(spec.obs).items() if part.dtype == "uint8" and len(part.shape) > 2
        }
    images = {path: part for path, part in leaves(spec.obs).items() if part.dtype == "uint8" and len(part.shape) > 1}
    pairs = _changes(env, spec, [path for path, column in images.items() if len(column.shape) > 2])
    return {path: _find(column.shape, pairs.get(path, [])) for path, column in images.items()}


def _find(shape: tuple[int, ...], pairs: Sequence[Pair]) -> FrameStack:
    for axis in (-1, 0) if pairs else ():
        for k in range(min(LARGEST_K, shape[axis]), 1, -1):
            if shape[axis] % k == 0 and all(_continues(*pair, axis, k) for pair in pairs):
                return FrameStack(axis, k)
    return FrameStack(-1, 1)


def _changes(env: "gymnasium.Env[Any, Any]", spec: EnvSpec, paths: Sequence[str]) -> Mapping[str, list[Pair]]:
    """Take random steps. Return, for each path, the pairs of successive observations that differ."""
    read, rng = ObsMap(env.observation_space, spec), np.random.default_rng(0)
    to_env = ActionMap(env.action_space).convert
    env.action_space.seed(0)
    pairs: dict[str, list[Pair]] = defaultdict(list)
    parts: Parts | None = None
    seed = 0
    for _ in range(STEPS):
        if all(len(pairs[path]) >= ENOUGH for path in paths):
            break
        try:
            if parts is None:
                parts, seed = _copied(read(*env.reset(seed=seed))), seed + 1
            action = allowed_action(parts[MASK], spec, to_env, rng) if MASK in parts else env.action_space.sample()
            obs, _, terminated, truncated, info = env.step(action)
            next_parts = _copied(read(obs, info))
        except EnvFault:  # the workers will report the fault
            return {}
        for path in paths:
            if len(pairs[path]) < ENOUGH and not np.array_equal(next_parts[path], parts[path]):
                pairs[path].append((parts[path], next_parts[path]))
        parts = None if terminated or truncated else next_parts
    return pairs


def _copied(parts: Parts) -> Parts:
    return {path: part.copy() for path, part in parts.items()}


def allowed_action(
    mask: Array, spec: EnvSpec, to_env: Callable[[Array], Any], rng: np.random.Generator
) -> Any:  # Any: an action of the space
    """Return a random action that the mask allows."""
    masks = np.split(mask, np.cumsum(spec.action.choices[:-1]))
    choices = np.array([rng.choice(np.flatnonzero(each)) for each in masks])
    return to_env(choices.reshape(1, *spec.action.column.shape))[0]


def _continues(obs: Array, next_obs: Array, axis: int, k: int) -> bool:
    """Return whether the first k - 1 frames of `next_obs` are the last k - 1 frames of `obs`."""
    frames, next_frames = np.split(obs, k, axis), np.split(next_obs, k, axis)
    return all(np.array_equal(frame, same) for frame, same in zip(frames[1:], next_frames, strict=False))
