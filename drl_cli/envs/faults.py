"""Messages about faults in a step or reset of an environment."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.envs.config import EnvFault
from drl_cli.envs.hang import Hung
from drl_cli.envs.observations import at
from drl_cli.types import Array
from drl_cli.utils.outside import raised

STEP_GIVES = "Gymnasium's gives observation, reward, terminated, truncated, info"


def as_fault(method: str, error: BaseException) -> EnvFault:
    """Return an EnvFault with a one-line message that explains why the call of `method` failed."""
    if isinstance(error, EnvFault):
        return error
    cause = str(error) if isinstance(error, Hung) else f"{method} {raised(error)}"
    if method == "step" and isinstance(error, ValueError) and "values to unpack (expected 5" in cause:
        few = "few" if "not enough" in cause else "many"
        cause = f"step gave too {few} values; {STEP_GIVES}"
    elif method == "step" and isinstance(error, TypeError) and "cannot unpack non-iterable" in cause:
        kind = "None" if "NoneType" in cause else "one value"
        cause = f"step gave {kind}; {STEP_GIVES}"
    elif method == "reset" and isinstance(error, TypeError) and "unexpected keyword argument" in cause:
        cause += "; write def reset(self, *, seed=None, options=None)"
    return because(" ".join(cause.split()), error)


def reset_result(result: Any) -> tuple[Any, Any]:  # Any: the value that `reset` returned
    """Return the observation and info that `reset` returned. Raise EnvFault if `reset` returned anything else."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    if result is None:
        kind = "None"
    elif isinstance(result, tuple):
        kind = f"{len(result)} values"
    else:
        kind = f"an observation alone ({type(result).__name__})"
    raise EnvFault(f"reset gave {kind}; Gymnasium's gives observation, info: return obs, {{}}")


def endless(id: str, steps: int) -> str:
    """Return a warning that no episode ended in this number of steps."""
    limits = "env.max_episode_steps=1000 manage.max_episode_steps=1000"
    why = "so that training sees the start again, and evaluations end"
    return f"{id}: no episode ended in {steps:,} steps; if episodes never end, say {limits}, {why}"


def because(text: str, error: BaseException) -> EnvFault:
    """Return an EnvFault with this text, caused by `error`."""
    fault = EnvFault(text)
    fault.__cause__ = error
    return fault


def is_surely_finite(values: Array) -> bool:
    """Return whether the sum of squares is finite, which implies finite values. Faster than `np.isfinite`."""
    return math.isfinite(np.vdot(values, values))


def not_finite(floats: Mapping[str, Array], i: int, reward: float) -> str | None:
    """Return a message if the reward or a float observation of environment `i` is NaN or infinite, else None."""
    if not np.isfinite(reward):
        return f"reward is {reward}"
    for path, part in floats.items():
        bad = np.argwhere(~np.isfinite(part[i]))
        if len(bad):
            return f"observation{at(path)}{bad[0].tolist() or ''} is {part[i][tuple(bad[0])]}"
    return None
