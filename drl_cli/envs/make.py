"""Environments at the edge: any Gymnasium id in, observations as arrays and actions in [-1, 1] out."""

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
    """One environment, `raw`, what reads its observations and what makes its actions of the policy's.

    The parts of an observation may be the environment's own arrays.
    """

    def __init__(self, config: EnvConfig, spec: EnvSpec) -> None:
        self.raw = build(config)
        self.to_env = ActionMap(self.raw.action_space)
        self.read = ObsMap(self.raw.observation_space, spec)

    def reset(self, seed: int | None = None) -> Parts:
        """Start an episode; the seed also fixes all later episodes of this environment."""
        return self.read(*reset_result(self.raw.reset(seed=seed)))

    def step(self, action: Array) -> tuple[Parts, float, bool, bool]:
        """Observation, reward, terminated, truncated for an action in [-1, 1] (or choices from 0)."""
        obs, reward, terminated, truncated, info = self.raw.step(self.to_env(action[None])[0])
        return self.read(obs, info), float(reward), terminated, truncated

    def close(self) -> None:
        """Free what the environment holds."""
        self.raw.close()


def build(config: EnvConfig) -> "gymnasium.Env[Any, Any]":
    """One environment in its wrappers, in training and in evaluation.

    Gymnasium's where it has the id, whatever `backend`, for workers alone use it; else EnvPool's. Raises MissingExtra
    or EnvError with one line that says what to do, EnvFault where a wrapper raises.
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
    """What Gymnasium makes: a game, a registered id, or what `module:Name` is where no environment has that name."""
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
    """What the module of an id has, for one that is not there; nothing where it has none."""
    module, colon, name = id.partition(":")
    there = names_in(module) if colon else []
    near = difflib.get_close_matches(name, there, 1, 0.5)
    hint = f" Did you mean {module}:{near[0]}?" if near else ""
    return f"{module} has no environment {name!r}.{hint}   it has: {', '.join(there)}" if there else ""


def names_in(module_name: str) -> list[str]:
    """Ids that a module registers for environments of its own, and its classes of which none is registered.

    Raises NotFound and ModuleRaised.
    """
    module = import_module(module_name)
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, gymnasium.Env)]
    own = [kind for kind in kinds if kind.__module__ == module_name]
    homes = {id: _home(spec) for id, spec in gymnasium.registry.items()}
    ids = [id for id, home in homes.items() if home.partition(":")[0] == module_name]
    return sorted(ids) + [kind.__name__ for kind in own if _home(kind) not in homes.values()]


def _home(made: Any) -> str:
    """`module:Name` of what makes an environment. Any: a class, a function, or what is registered of one."""
    entry = made.entry_point if isinstance(made, EnvRegistration) else made
    return entry if isinstance(entry, str) else f"{entry.__module__}:{getattr(entry, '__qualname__', '')}"


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
    """Whether an id can be made: a game, registered with Gymnasium, or `module:Id` with a module that can be found."""
    if ":" in id:
        module = id.split(":", 1)[0]
        try:
            return importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):  # a parent is missing; the name is empty, or no import path
            return False
        except Exception:  # the package around it raised: who imports it will say so
            return True
    return id in games() or id in gymnasium.registry


def registered() -> list[str]:
    """All ids that Gymnasium knows, and the games."""
    return sorted({*gymnasium.registry, *games()})


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
    if task is not None and config.wrappers:
        raise EnvError("env.wrappers: EnvPool's environments can't be wrapped; say env.backend=gymnasium")
    env = build(config)
    try:
        action = action_spec(config.id, env.action_space)
        info = (
            reset_result(env.reset(seed=0))[1] if action.kind != "box" else {}
        )  # where masks are, the first reset shows one
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
