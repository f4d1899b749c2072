"""Environments at the edge: any Gymnasium id in, observations as arrays and actions in [-1, 1] out."""

import importlib
import importlib.util
import re
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from drl_cli.envs.actions import ActionMap
from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.envpool_tasks import check_spaces, find_task, make_alone
from drl_cli.envs.frame_stack import find_frame_stack
from drl_cli.types import ActionSpec, Array, Column, EnvSpec


class Env:
    """One environment, `raw`, and what makes its actions of the policy's; an observation may be its own array."""

    def __init__(self, config: EnvConfig) -> None:
        self.raw = build(config)
        self.to_env = ActionMap(self.raw.action_space)

    def reset(self, seed: int | None = None) -> Array:
        """Start an episode; the seed also fixes all later episodes of this environment."""
        obs: Array = self.raw.reset(seed=seed)[0]
        return obs

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        """Observation, reward, terminated, truncated for an action in [-1, 1] (or a choice from 0)."""
        obs, reward, terminated, truncated, _ = self.raw.step(self.to_env(action[None])[0])
        return obs, float(reward), terminated, truncated

    def close(self) -> None:
        """Free what the environment holds."""
        self.raw.close()


def build(config: EnvConfig) -> "gymnasium.Env[Any, Any]":
    """One environment: Gymnasium's where it has the id, whatever `backend`, for workers alone use it; else EnvPool's.

    Raises MissingExtra or EnvError with one line that says what to do.
    """
    if config.backend == "envpool" and not exists(config.id):
        return make_alone(config)
    extra = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            env = gymnasium.make(config.id, disable_env_checker=True, **extra, **config.kwargs)
            return _without_order_checks(env)
    except gymnasium.error.DependencyNotInstalled as error:
        extra_name = _extra(str(error))
        raise MissingExtra(f"{config.id} needs {extra_name[0]}:  pip install 'drl-cli[{extra_name[1]}]'") from error
    except ModuleNotFoundError as error:
        raise EnvError(f"env: can't import {error.name!r} for {config.id!r}") from error
    except gymnasium.error.Error as error:
        raise EnvError(f"env: {config.id!r} can't be made: {error}") from error


def _without_order_checks(env: "gymnasium.Env[Any, Any]") -> "gymnasium.Env[Any, Any]":
    """Less what Gymnasium puts around every environment to see that a reset comes first, and calls at each step."""
    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env
    return env


def _extra(message: str) -> tuple[str, str]:
    """What is missing and the extra that brings it, from Gymnasium's own message."""
    found = re.search(r"gymnasium\[([\w-]+)\]", message)
    name = found.group(1) if found else "mujoco" if "mujoco" in message.lower() else "dev"
    return {"mujoco": "MuJoCo", "atari": "Atari", "box2d": "Box2D"}.get(name, name), name


def exists(id: str) -> bool:
    """Whether an id can be made: registered with Gymnasium, or `module:Id` with a module that can be found."""
    if ":" in id:
        module = id.split(":", 1)[0]
        try:
            return importlib.util.find_spec(module) is not None
        except (ModuleNotFoundError, ValueError):  # a parent is missing; the name is empty
            return False
    return id in gymnasium.registry


def registered() -> list[str]:
    """All ids that Gymnasium knows."""
    return sorted(gymnasium.registry)


def read_spec(config: EnvConfig, trains: bool = True) -> EnvSpec:
    """Build the environment once, and say what it takes and gives; raises EnvError where we can't handle it.

    Whether EnvPool can stand in for it matters only when it `trains`.
    """
    if ":" in config.id:
        module = config.id.split(":", 1)[0]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise EnvError(f"env: can't import {module!r}: {error}") from error
    task = find_task(config) if trains and config.backend == "envpool" else None
    env = build(config)
    try:
        if task is not None:
            check_spaces(task, env)
        obs, action = _obs_column(config.id, env.observation_space), _action_spec(config.id, env)
        is_image = obs.dtype == "uint8" and len(obs.shape) > 1
        stack = find_frame_stack(env) if is_image and config.frame_stack == "auto" else None
        return EnvSpec(config.id, obs, action, stack)
    finally:
        env.close()


def _obs_column(id: str, space: "gymnasium.Space[Any]") -> Column:
    if not isinstance(space, spaces.Box):
        raise EnvError(f"env: {id} has {space} observations; only Box is handled. Wrap it (FlattenObservation).")
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    return Column(tuple(space.shape), dtype)


def _action_spec(id: str, env: "gymnasium.Env[Any, Any]") -> ActionSpec:
    space = env.action_space
    if isinstance(space, spaces.Box):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise EnvError(f"env: {id} has unbounded actions {space}. Wrap it (RescaleAction, ClipAction).")
        return ActionSpec("box", int(np.prod(space.shape)), f"Box{space.shape}")
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", int(space.n), f"Discrete({space.n})")
    raise EnvError(f"env: {id} has {space} actions; only Box and Discrete are handled.")
