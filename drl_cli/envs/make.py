"""Environments by id, with observations as arrays and actions in [-1, 1]."""

import difflib
import importlib
import importlib.util
import re
import warnings
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as EnvRegistration
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from drl_cli.envs.actions import ActionMap, action_spec, unbounded
from drl_cli.envs.catalog import missing_package
from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.envpool_tasks import check_spaces, find_task, make_alone
from drl_cli.envs.faults import reset_result
from drl_cli.envs.frame_stack import find_frame_stacks
from drl_cli.envs.games.names import games
from drl_cli.envs.observations import ObsMap, Parts, obs_spec
from drl_cli.envs.wrap import wrap
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.outside import import_module


class Env:
    """One environment `raw`, with conversions of its observations (`read`) and of the policy's actions (`to_env`).

    Observations may share memory with the environment.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec) -> None:
        self.raw = build(config)
        self.to_env = ActionMap(self.raw.action_space)
        self.read = ObsMap(self.raw.observation_space, spec)

    def reset(self, seed: int | None = None) -> Parts:
        """Begin an episode. The seed also determines all later episodes of this environment."""
        return self.read(*reset_result(self.raw.reset(seed=seed)))

    def step(self, action: Array) -> tuple[Parts, float, bool, bool]:
        """Return observation, reward, terminated, truncated for an action in [-1, 1] (or choices from 0)."""
        obs, reward, terminated, truncated, info = self.raw.step(self.to_env(action[None])[0])
        return self.read(obs, info), float(reward), terminated, truncated

    def close(self) -> None:
        """Close the environment."""
        self.raw.close()


def build(config: EnvConfig) -> "gymnasium.Env[Any, Any]":
    """Make one environment with its wrappers.

    It is EnvPool's only if Gymnasium lacks the id; workers with `backend=envpool` use EnvPoolBatch instead. Raise
    MissingExtra or EnvError with advice in one line, or EnvFault if a wrapper raises.
    """
    return wrap(_make(config), config.wrappers)


def _make(config: EnvConfig) -> "gymnasium.Env[Any, Any]":
    if config.backend == "envpool" and not exists(config.id):
        return make_alone(config)
    if package := missing_package(config.id):
        raise MissingExtra(f"{config.id} needs {package.module}:  pip install '{package.install}'")
    extra = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            env = gymnasium.make(_found(config.id), disable_env_checker=True, **extra, **config.kwargs)
            return _without_order_checks(env)
    except gymnasium.error.DependencyNotInstalled as error:
        extra_name = _extra(str(error))
        raise MissingExtra(f"{config.id} needs {extra_name[0]}:  pip install 'drl-cli[{extra_name[1]}]'") from error
    except ModuleNotFoundError as error:
        raise EnvError(f"env: can't import {error.name!r} for {config.id!r}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise EnvError(f"env: {config.id!r} can't be made: {_instead(config.id) or error}") from error
    except gymnasium.error.Error as error:
        raise EnvError(f"env: {config.id!r} can't be made: {error}") from error


def _found(id: str) -> str | EnvRegistration:
    """Return what gymnasium.make takes: a game, an id, or the class behind `module:Name` if no id has that name."""
    module_name, colon, name = id.partition(":")
    if not colon:
        return games().get(id, id)
    module = importlib.import_module(module_name)
    made = getattr(module, name, None)
    if name in gymnasium.registry or not callable(made):
        return id
    versions = [(spec.version or 0, known) for known, spec in gymnasium.registry.items() if _home(spec) == _home(made)]
    return max(versions)[1] if versions else EnvRegistration(name, entry_point=made)


def _instead(id: str) -> str:
    """Return a hint with the environments of the module of an unknown `module:Name`, or an empty text."""
    module, colon, name = id.partition(":")
    there = names_in(module) if colon else []
    near = difflib.get_close_matches(name, there, 1, 0.5)
    hint = f" Did you mean {module}:{near[0]}?" if near else ""
    return f"{module} has no environment {name!r}.{hint}   it has: {', '.join(there)}" if there else ""


def names_in(module_name: str) -> list[str]:
    """Return the ids that a module registers, and the names of its environment classes without an id.

    Raise NotFound or ModuleRaised.
    """
    module = import_module(module_name)
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, gymnasium.Env)]
    own = [kind for kind in kinds if kind.__module__ == module_name]
    homes = {id: _home(spec) for id, spec in gymnasium.registry.items()}
    ids = [id for id, home in homes.items() if home.partition(":")[0] == module_name]
    return sorted(ids) + [kind.__name__ for kind in own if _home(kind) not in homes.values()]


def _home(made: Any) -> str:  # Any: see below
    """Return `module:Name` of a class, a function or a registration that makes an environment."""
    entry = made.entry_point if isinstance(made, EnvRegistration) else made
    return entry if isinstance(entry, str) else f"{entry.__module__}:{getattr(entry, '__qualname__', '')}"


def _without_order_checks(env: "gymnasium.Env[Any, Any]") -> "gymnasium.Env[Any, Any]":
    """Remove the wrapper with which Gymnasium checks at each step that there was a reset."""
    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env
    return env


def _extra(message: str) -> tuple[str, str]:
    """Return the missing library and the extra that installs it, from Gymnasium's message."""
    found = re.search(r"gymnasium\[([\w-]+)\]", message)
    name = found.group(1) if found else "mujoco" if "mujoco" in message.lower() else "dev"
    return {"mujoco": "MuJoCo", "atari": "Atari", "box2d": "Box2D"}.get(name, name), name


def exists(id: str) -> bool:
    """Return whether an id is a game, is registered with Gymnasium, or names a module that can be found."""
    if ":" in id:
        module = id.split(":", 1)[0]
        try:
            return importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):  # no parent package, or no valid name
            return False
        except Exception:  # its package raised; importing the module will report that
            return True
    return id in games() or id in gymnasium.registry


def registered() -> list[str]:
    """Return all ids of Gymnasium and of the games."""
    return sorted({*gymnasium.registry, *games()})


def read_spec(config: EnvConfig, trains: bool = True) -> EnvSpec:
    """Make the environment once and describe it. Raise EnvError if it is not supported.

    With `trains` and `backend=envpool`, also check that EnvPool's task is the same environment.
    """
    if ":" in config.id:
        module = config.id.split(":", 1)[0]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise EnvError(f"env: can't import {module!r}: {error}") from error
    task = find_task(config) if trains and config.backend == "envpool" else None
    if task is not None and config.wrappers:
        raise EnvError("env.wrappers: EnvPool's environments can't be wrapped; say env.backend=gymnasium")
    env = build(config)
    try:
        action = action_spec(config.id, env.action_space)
        info = reset_result(env.reset(seed=0))[1] if action.kind != "box" else {}  # it may have an action mask
        spec = EnvSpec(config.id, obs_spec(config.id, env.observation_space, action, info), action)
        if task is not None:
            check_spaces(task, env, spec)
        stacks = find_frame_stacks(env, spec) if config.frame_stack == "auto" else {}
        return replace(spec, frame_stacks=stacks, notes=_notes(config.id, env))
    finally:
        env.close()


def _notes(id: str, env: "gymnasium.Env[Any, Any]") -> tuple[str, ...]:
    if not (free := unbounded(env.action_space)):
        return ()
    text = "of its action has" if free == 1 else "of its actions have"
    return (f"{id}: {free} dimension{'s' * (free > 1)} {text} no bounds; the policy's values go in as they are",)
