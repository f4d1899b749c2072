"""Wrappers: repeat actions for `env.action_repeat`, and apply the user's wrappers for `env.wrappers`."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from drl_cli.envs.catalog import makes
from drl_cli.envs.config import EnvError, EnvFault
from drl_cli.utils.outside import NotFound, bare_import, raised


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


def wrap(env: "gymnasium.Env[Any, Any]", paths: Sequence[str], repeat: int = 1) -> "gymnasium.Env[Any, Any]":
    """Apply wrappers to an environment. Each path is `module:Class`; the first wrapper is the innermost.

    With `repeat` above 1, each action is repeated. All wrappers of `paths` are around the repetition.

    Raise EnvError if a wrapper can't be found. Raise EnvFault if a wrapper raises or returns no environment.
    """
    if repeat > 1:
        env = ActionRepeat(env, repeat)
    for path in paths:
        wrapper = _find(path)
        try:
            env = wrapper(env)
        except Exception as error:
            raise EnvFault(f"env.wrappers: {path} {raised(error)}") from error
        if not isinstance(env, gymnasium.Env):
            raise EnvFault(f"env.wrappers: {path} gave {type(env).__name__}, not a gymnasium.Env")
    return env


def _find(path: str) -> Callable[["gymnasium.Env[Any, Any]"], "gymnasium.Env[Any, Any]"]:
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise EnvError(f"env.wrappers: {path!r} is not of the form my_mod:MyWrapper")
    try:
        module = bare_import(module_name)
    except (ImportError, NotFound) as error:
        raise EnvError(f"env.wrappers: can't import {module_name!r}: {error}") from error
    except Exception as error:
        raise EnvFault(f"env.wrappers: importing {module_name!r} {raised(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [each for each in dir(module) if not each.startswith("_")], 1)
        raise EnvError(f"env.wrappers: {module_name} has no {name!r}.{f' Did you mean {near[0]}?' if near else ''}")
    if not makes(found, gymnasium.Env):
        raise EnvError(f"env.wrappers: {path} is no wrapper: it must be a class derived from gymnasium.Wrapper")
    wrapper: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = found
    return wrapper
