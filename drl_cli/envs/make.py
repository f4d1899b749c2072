"""Make environments by id, with observations as arrays and actions in [-1, 1]."""

import importlib.util
import inspect
import math
import re
import warnings
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as EnvRegistration
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from drl_cli.envs.actions import ActionMap, action_spec, unbounded
from drl_cli.envs.atari import check_game
from drl_cli.envs.catalog import games, makes, missing_package, register, without_model_warnings
from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.envpool_tasks import check_spaces, find_task
from drl_cli.envs.faults import Tick, no_tick, reset_result
from drl_cli.envs.observations import ObsMap, Parts, obs_spec
from drl_cli.envs.wrap import find_frame_stacks, wrap
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.outside import NotFound, bare_import, import_module, reach
from drl_cli.utils.spelling import did_you_mean


class Env:
    """One Gymnasium environment `raw`. `read` converts its observations, and `to_env` converts the policy's actions.

    The returned observations may share memory with the environment.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec) -> None:
        self.raw = build(config)
        self.to_env = ActionMap(self.raw.action_space).convert
        self.read = ObsMap(self.raw.observation_space, spec)

    def reset(self, seed: int | None = None) -> Parts:
        """Begin an episode and return its first observation. The seed also determines all later episodes."""
        return self.read(*reset_result(self.raw.reset(seed=seed)))

    def step(self, action: Array) -> tuple[Parts, float, bool, bool]:
        """Take an action in [-1, 1] (or a choice counted from 0). Return observation, reward, terminated, truncated."""
        obs, reward, terminated, truncated, info = self.raw.step(self.to_env(action[None])[0])
        return self.read(obs, info), float(reward), terminated, truncated

    def close(self) -> None:
        self.raw.close()


def build(config: EnvConfig) -> "gymnasium.Env[Any, Any]":
    """Make one environment of Gymnasium with its wrappers. Workers with another `backend` step its batches instead.

    Raise MissingExtra or EnvError with one line of advice, or EnvFault if a wrapper raises.
    """
    if package := missing_package(config.id):
        raise MissingExtra(f"{config.id} needs {package.module}:  pip install '{package.install}'")
    extra = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    try:
        with warnings.catch_warnings(), without_model_warnings(config.id):
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            env = gymnasium.make(_found(config.id), disable_env_checker=True, **extra, **config.kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        found = re.search(r"gymnasium\[([\w-]+)\]", str(error))  # the message names the extra that is missing
        name = found[1] if found else "mujoco" if "mujoco" in str(error).lower() else "dev"
        library = {"mujoco": "MuJoCo", "atari": "Atari", "box2d": "Box2D"}.get(name, name)
        raise MissingExtra(f"{config.id} needs {library}:  pip install 'drl-cli[{name}]'") from error
    except ModuleNotFoundError as error:
        raise EnvError(f"env: can't import {error.name!r} for {config.id!r}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise EnvError(f"env: {config.id!r} can't be made: {_instead(config.id) or error}") from error
    except gymnasium.error.Error as error:
        raise EnvError(f"env: {config.id!r} can't be made: {error}") from error
    return wrap(_without_order_checks(env), config)


def _found(id: str) -> str | EnvRegistration:
    """Return the argument for `gymnasium.make`: an id, or a registration for a game or for a class `module:Name`."""
    module_name, colon, name = id.partition(":")
    if not colon:
        register(id)
        return games().get(id, id)
    module = bare_import(module_name)
    made = getattr(module, name, None)
    if name in gymnasium.registry or not callable(made):
        return id
    if not makes(made, gymnasium.Env):
        raise EnvError(f"env: {id} is no environment: it must be a class derived from gymnasium.Env")
    versions = [(spec.version or 0, known) for known, spec in gymnasium.registry.items() if _home(spec) == _home(made)]
    return max(versions)[1] if versions else EnvRegistration(name, entry_point=made)


def _instead(id: str) -> str:
    """Return a hint that lists the environments of the module if `module:Name` is unknown, or an empty text."""
    module, colon, name = id.partition(":")
    there = names_in(module) if colon else []
    hint = did_you_mean(id, [f"{module}:{each}" for each in there])
    return f"{module} has no environment {name!r}.{hint}   it has: {', '.join(there)}" if there else ""


def names_in(module_name: str) -> list[str]:
    """Return the ids of the environments in a module, and the names of its environment classes that have no id.

    Raise NotFound or ModuleRaised if the module can't be imported.
    """
    module = import_module(module_name)
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, gymnasium.Env)]
    own = [kind for kind in kinds if kind.__module__ == module_name]
    homes = {id: _home(spec) for id, spec in gymnasium.registry.items()}
    ids = [id for id, home in homes.items() if home.partition(":")[0] == module_name]
    return sorted(ids) + [kind.__name__ for kind in own if _home(kind) not in homes.values()]


def _home(made: Any) -> str:  # Any: a class, a function or a registration
    entry = made.entry_point if isinstance(made, EnvRegistration) else made
    return entry if isinstance(entry, str) else f"{entry.__module__}:{getattr(entry, '__qualname__', '')}"


def _without_order_checks(env: "gymnasium.Env[Any, Any]") -> "gymnasium.Env[Any, Any]":
    """Remove Gymnasium's wrapper OrderEnforcing, which checks at each step that the environment was reset."""
    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env
    return env


def arguments(id: str) -> list[str]:
    """Return the names of the arguments of an environment's constructor, or none if they can't be read."""
    try:
        found = _found(id)
        entry = (
            found.entry_point
            if isinstance(found, EnvRegistration)
            else gymnasium.spec(found.rpartition(":")[2]).entry_point
        )
        make = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        kinds = inspect.signature(make).parameters.values() if make is not None else ()
    except (gymnasium.error.Error, ImportError, TypeError, ValueError, AttributeError):
        return []
    return [each.name for each in kinds if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def exists(id: str) -> bool:
    """Return whether an id names a game, an environment of Gymnasium, or a module that can be found."""
    if ":" in id:
        module = id.split(":", 1)[0]
        reach(module)
        try:
            return importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):  # the parent package is missing, or the name is invalid
            return False
        except Exception:  # the parent package raised an error; importing the module will report the error
            return True
    register(id)
    return id in games() or id in gymnasium.registry


def registered() -> list[str]:
    """Return the ids of all environments of Gymnasium and of all games, sorted."""
    return sorted({*gymnasium.registry, *games()})


def read_spec(config: EnvConfig, trains: bool = True, tick: Tick = no_tick) -> EnvSpec:
    """Make the environment once and return its EnvSpec. Raise EnvError if the environment is not supported.

    If `trains` is True, also check that the library of `backend` has the environment, with the same spaces.
    """
    if ":" in config.id:
        module = config.id.split(":", 1)[0]
        tick("its import")
        try:
            bare_import(module)
        except (ImportError, NotFound) as error:
            gym = "; gym is gymnasium now: write import gymnasium as gym" if getattr(error, "name", "") == "gym" else ""
            raise EnvError(f"env: can't import {module!r}: {error}{gym}") from error
    task = find_task(config) if trains and config.backend == "envpool" else None
    if trains and config.backend == "ale":
        check_game(config)
    counts = [f"env.{key}={num}" for key in ("action_repeat", "frame_stack") if (num := getattr(config, key)) > 1]
    if trains and config.backend != "gymnasium" and (config.wrappers or counts):
        key = "env.wrappers" if config.wrappers else counts[0]
        library = "EnvPool" if config.backend == "envpool" else "ale-py"
        raise EnvError(f"{key}: {library}'s environments can't be wrapped; say env.backend=gymnasium")
    tick("its constructor")
    env = build(config)
    try:
        if config.action_repeat > 1 and (steps := time_limit(env)) is not None and config.action_repeat >= steps:
            raise EnvError(
                f"env.action_repeat={config.action_repeat}: an episode of {config.id} ends after {steps} steps, so "
                f"that each episode would have one action; say env.action_repeat={min(4, max(1, steps - 1))}"
            )
        action = action_spec(config.id, env.action_space)
        tick("reset")
        info = reset_result(env.reset(seed=0))[1] if action.kind != "box" else {}  # may contain a mask
        spec = EnvSpec(config.id, obs_spec(config.id, env.observation_space, action, info), action)
        if task is not None:
            check_spaces(task, env, spec)
        stacks = find_frame_stacks(env, spec) if config.frame_storage == "auto" else {}
        free = unbounded(env.action_space)
        text = f"{free} dimension of its action has" if free == 1 else f"{free} dimensions of its actions have"
        note = f"{config.id}: {text} no bounds; the policy's values go in as they are"
        notes, renders = (note,) if free else (), "rgb_array" in ((env.metadata or {}).get("render_modes") or ())
        steps, limited = time_limit(env), is_limited(config, env)
        most = None if steps is None else -(-steps // config.action_repeat)
        return replace(spec, frame_stacks=stacks, notes=notes, is_limited=limited, time_limit=most, renders=renders)
    finally:
        tick("close")
        env.close()


def is_limited(config: EnvConfig, env: "gymnasium.Env[Any, Any]") -> bool:
    """Return whether a time limit ends every episode. Environments of drl-cli, EnvPool and games have their limits.

    Tasks of dm_control have their limit in the task that shimmy wraps, and no TimeLimit.
    """
    if config.backend == "envpool" or config.id in games() or config.id.startswith("drl_cli."):
        return True
    return time_limit(env) is not None or any(map(math.isfinite, dm_control_limits(env.unwrapped)))


def time_limit(env: "gymnasium.Env[Any, Any]") -> int | None:
    """Return the steps after which Gymnasium's TimeLimit ends an episode, or None without this wrapper."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper) and not isinstance(layer, TimeLimit):
        layer = layer.env
    return layer._max_episode_steps if isinstance(layer, TimeLimit) else None


def dm_control_limits(env: "gymnasium.Env[Any, Any]") -> list[float]:
    """Return the time limits (in steps or seconds) of the dm_control task in an environment, or none."""
    task = getattr(env, "_env", None)  # dm_control has no public attribute
    limits = (getattr(task, name, None) for name in ("_step_limit", "_time_limit"))
    return [limit for limit in limits if isinstance(limit, int | float)]
