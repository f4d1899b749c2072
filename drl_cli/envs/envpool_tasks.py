"""EnvPool (an optional extra): find the EnvPool task that equals a Gymnasium environment, and make pools of it."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.trees import same_values
from drl_cli.types import MASK, EnvSpec, leaves
from drl_cli.utils.spelling import did_you_mean

OURS = frozenset(
    {"num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path"}
    | {"seed", "env_seed", "gym_reset_return_info", "max_episode_steps", "reward_threshold"}
)
"""Options of EnvPool tasks that `env.kwargs` must not set."""

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Task:
    """An EnvPool task: id, options, maximum number of steps per episode, and the spaces of one environment."""

    id: str
    options: Mapping[str, Any]
    max_episode_steps: int
    observation_space: "spaces.Space[Any]"
    action_space: "spaces.Space[Any]"


def find_task(config: EnvConfig) -> Task:
    """Return the EnvPool task for a config. Raise MissingExtra or EnvError with one line of advice."""
    library = _library()
    id, kwargs = _translate(config, library.list_all_envs())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            takes = sorted(set(library.make_spec(id).config._fields) - OURS)
            if strange := [name for name in kwargs if name not in takes]:
                has = f"it has {', '.join(takes)}" if takes else "it has none"
                raise EnvError(
                    f"env.kwargs.{strange[0]}: EnvPool's {id} has no such option ({has}); say env.backend=gymnasium"
                )
            spec = library.make_spec(id, **kwargs)
            observation_space, action_space = spec.observation_space, spec.action_space
    except (TypeError, ValueError) as error:
        raise EnvError(f"env.kwargs: EnvPool does not make {id} with {kwargs} ({type(error).__name__})") from error
    if spec.config.max_num_players != 1:
        raise EnvError(f"env: EnvPool's {id} has {spec.config.max_num_players} players; only one is handled")
    registered = gymnasium.registry[config.id].max_episode_steps
    limit = config.max_episode_steps or registered or spec.config.max_episode_steps
    return Task(id, kwargs, limit, observation_space, action_space)


def make_pool(task: Task, seeds: Sequence[int]) -> Any:
    """Return a pool with one environment per seed. The pool has one thread, because each worker is a process.

    The caller must end episodes after `max_episode_steps`. The step limit of the pool is one step higher, so that the
    pool never reaches it. For an episode that terminates in its last allowed step, EnvPool would report truncation.
    """
    limit = min(task.max_episode_steps + 1, INT32_MAX)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        pool = _library().make_gymnasium(
            task.id, num_envs=len(seeds), seed=list(seeds), num_threads=1, max_episode_steps=limit, **task.options
        )
        _ = pool.observation_space  # the first access warns; the warning is ignored here
    return pool


def info_of(info: Mapping[str, Any], i: int, size: int) -> dict[str, Any]:  # Any: arrays, and mappings of arrays
    """Return the info of environment `i` from the info of a pool of `size` environments."""
    return {name: column[i] for name, column in info.items() if np.shape(column)[:1] == (size,)}


def check_spaces(task: Task, env: "gymnasium.Env[Any, Any]", spec: EnvSpec) -> None:
    """Raise EnvError if EnvPool's spaces are not supported or differ from the spaces of Gymnasium's environment.

    The spaces must be equal because evaluations use Gymnasium's environment. Only Box observations without action masks
    and Box or Discrete actions are supported.
    """
    obs, action = task.observation_space, task.action_space
    strange = [] if isinstance(obs, spaces.Box) else [f"{type(obs).__name__} observations"]
    strange += [] if isinstance(action, spaces.Box | spaces.Discrete) else [f"{type(action).__name__} actions"]
    strange += ["action masks"] if isinstance(obs, spaces.Box) and MASK in leaves(spec.obs) else []
    if strange:
        what = " and ".join(strange)
        raise EnvError(f"env: {spec.id} has {what}, which are not handled with EnvPool; say env.backend=gymnasium")
    if env.observation_space.shape != obs.shape or (env.observation_space.dtype == np.uint8) != (obs.dtype == np.uint8):
        what, pool, gym = "observations", obs, env.observation_space
    elif not same_values(env.action_space, action):
        what, pool, gym = "actions", action, env.action_space
    else:
        return
    raise EnvError(
        f"env: EnvPool's {task.id} has {pool} {what}, Gymnasium's, which evaluations play, {gym}; "
        "say env.backend=gymnasium"
    )


def _library() -> Any:
    try:
        import envpool
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise EnvError(f"env.backend=envpool: can't import {error.name!r}, which EnvPool needs") from error
        raise MissingExtra("env.backend=envpool needs EnvPool:  pip install 'drl-cli[envpool]'") from error
    except ImportError as error:
        raise EnvError(f"env.backend=envpool: can't import EnvPool: {error}") from error
    return envpool


def _translate(config: EnvConfig, known: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return EnvPool's id for an environment, and the keyword arguments that this id does not imply.

    For example, EnvPool has LunarLander-v3 with `continuous=true` only as LunarLanderContinuous-v3.
    """
    registry = gymnasium.registry
    if entry := registry.get(config.id):
        kwargs = {**entry.kwargs, **config.kwargs}
        shared = [
            (id, registry[id]) for id in known if id in registry and registry[id].entry_point == entry.entry_point
        ]
        same = [id for id, other in shared if other.kwargs.items() <= kwargs.items()]
        if best := max(same, key=lambda id: (len(registry[id].kwargs), id == config.id), default=None):
            return best, {name: value for name, value in kwargs.items() if name not in registry[best].kwargs}
    if config.id in known:
        raise EnvError(f"env: only EnvPool has {config.id!r}, and evaluations play Gymnasium's environment")
    hint = did_you_mean(config.id.rpartition(":")[2], known)
    raise EnvError(
        f"env: EnvPool has no {config.id!r}.{hint} env.backend=gymnasium takes Gymnasium's ids, and your own"
    )
