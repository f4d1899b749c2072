"""Wrappers of single environments, and how frames are stacked."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from drl_cli.envs.actions import ActionMap
from drl_cli.envs.catalog import makes
from drl_cli.envs.config import EnvConfig, EnvError, EnvFault, wrapper_path
from drl_cli.envs.observations import ObsMap, Parts
from drl_cli.types import MASK, Array, EnvSpec, FrameStack, leaves
from drl_cli.utils.outside import NotFound, bare_import, missing_arguments, raised
from drl_cli.utils.spelling import did_you_mean


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action `times` steps, or until the episode ends or a life is lost, and sums the rewards.

    Observation and info are those of the last step.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]", times: int) -> None:
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, total, terminated, truncated, info = self.env.step(action)
        for _ in range(self.times - 1):
            if terminated or truncated or info.get("life_lost"):
                break
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = float(total) + float(reward)
        return obs, total, terminated, truncated, info


class StackFrames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Joins the last `num` observations, the oldest first. An episode begins with copies of its first observation.

    Images are joined along their channels, and other arrays along their last axis. Raise EnvError if the observations
    are not one array, or if the environment stacks frames itself.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]", num: int) -> None:
        super().__init__(env)
        space, own = env.observation_space, getattr(env.unwrapped, "frame_stack", None)
        if isinstance(own, FrameStack) and own.k > 1:
            raise EnvError(f"env.frame_stack={num}: the game stacks {own.k} frames itself; say env.kwargs.stack={num}")
        if not isinstance(space, Box) or not space.shape:
            raise EnvError(f"env.frame_stack={num}: only observations of a Box can be stacked, not those of {space}")
        self._has_channels = len(space.shape) != 2 or space.dtype not in (np.uint8, np.bool_)
        shape = space.shape if self._has_channels else (1, *space.shape)
        is_first = len(shape) == 4 or (len(shape) == 3 and shape[0] < min(shape[1:]))  # as networks read images
        self.stack = FrameStack(0 if is_first else -1, num)
        self._frames: deque[Array] = deque(maxlen=num)
        low, high = (self._join([bound] * num) for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=space.dtype.type)

    def reset(self, **kwargs: Any) -> tuple[Array, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._join([obs] * self.stack.k), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._join([obs]), reward, terminated, truncated, info

    def _join(self, newest: list[Array]) -> Array:
        self._frames.extend(np.array(obs if self._has_channels else [obs]) for obs in newest)  # copies
        return np.concatenate(self._frames, self.stack.axis)


def wrap(env: "gymnasium.Env[Any, Any]", config: EnvConfig) -> "gymnasium.Env[Any, Any]":
    """Apply the wrappers of `config` to an environment.

    From the inside to the outside: the repetition of actions, the user's wrappers in their order, and the frame stack.

    Raise EnvError if a wrapper can't be found. Raise EnvFault if a wrapper raises or returns no environment.
    """
    if config.action_repeat > 1:
        env = ActionRepeat(env, config.action_repeat)
    for each in config.wrappers:
        path = wrapper_path(each)
        wrapper, arguments = _find(path), {} if isinstance(each, str) else dict(each)
        arguments.pop("_name_", None)
        try:
            env = wrapper(env, **arguments)
        except Exception as error:
            raise EnvFault(f"env.wrappers: {path} {raised(error)}{_with_arguments(path, error)}") from error
        if not isinstance(env, gymnasium.Env):
            raise EnvFault(f"env.wrappers: {path} gave {type(env).__name__}, not a gymnasium.Env")
    return StackFrames(env, config.frame_stack) if config.frame_stack > 1 else env


def _with_arguments(path: str, error: Exception) -> str:
    values = ", ".join(f"{name}: ..." for name in missing_arguments(error))
    return f"; say env.wrappers=[{{_name_: {path}, {values}}}]" if values else ""


def _find(path: str) -> Callable[..., "gymnasium.Env[Any, Any]"]:
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise EnvError(
            f"env.wrappers: {path!r} is not of the form my_mod:MyWrapper, or {{_name_: my_mod:MyWrapper, arg: 4}}"
        )
    try:
        module = bare_import(module_name)
    except (ImportError, NotFound) as error:
        raise EnvError(f"env.wrappers: can't import {module_name!r}: {error}") from error
    except Exception as error:
        raise EnvFault(f"env.wrappers: importing {module_name!r} {raised(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        near = did_you_mean(name, [each for each in dir(module) if not each.startswith("_")])
        raise EnvError(f"env.wrappers: {module_name} has no {name!r}.{near}")
    if not makes(found, gymnasium.Env):
        raise EnvError(f"env.wrappers: {path} is no wrapper: it must be a class derived from gymnasium.Wrapper")
    wrapper: Callable[..., gymnasium.Env[Any, Any]] = found
    return wrapper


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
    return {path: _wrapper(column.shape, pairs.get(path, [])) for path, column in images.items()}


def _wrapper(shape: tuple[int, ...], pairs: Sequence[Pair]) -> FrameStack:
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


def allowed_action(mask: Array, spec: EnvSpec, to_env: Callable[[Array], Any], rng: np.random.Generator) -> Any:
    """Return a random action that the mask allows."""
    masks = np.split(mask, np.cumsum(spec.action.choices[:-1]))
    choices = np.array([rng.choice(np.flatnonzero(each)) for each in masks])
    return to_env(choices.reshape(1, *spec.action.column.shape))[0]


def _continues(obs: Array, next_obs: Array, axis: int, k: int) -> bool:
    frames, next_frames = np.split(obs, k, axis), np.split(next_obs, k, axis)
    return all(np.array_equal(frame, same) for frame, same in zip(frames[1:], next_frames, strict=False))
