"""Faults of environments: what they return, raise, never return, or can't draw."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from drl_cli.envs.config import EnvConfig, EnvFault, MissingExtra
from drl_cli.envs.observations import at
from drl_cli.types import Array
from drl_cli.utils.outside import raised

TICKS = 8
"""Number of checks per `timeout_s`. A hang is detected at most one eighth of `timeout_s` too late."""


Tick: TypeAlias = Callable[[str], None]
"""A function that is told the name of each call of an environment, before the call."""


def no_tick(name: str) -> None:
    """Do nothing. The default of `tick`."""


class Hung(BaseException):
    """Raised if an environment takes too long. It derives from BaseException, so that environments do not catch it."""


class CallWatch:
    """Context manager around each call of an environment; `hang_limit` reads `number` to see how long the call takes.

    `number` is odd during a call and never repeats. A counter is used because it costs the least time: a step
    of a small environment takes only 5 us.
    """

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.number += 1


@contextmanager
def hang_limit(timeout_s: float, calls: CallWatch) -> Iterator[None]:
    """Raise Hung inside a call that takes longer than `timeout_s`.

    Python code and sleeping can be interrupted, but not a library call that never returns. Outside the main thread
    there is no limit, because Python handles signals only in the main thread. At the end, the previous SIGALRM handler
    and timer are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen, ticks, ending = -1, 0, CallWatch.__exit__.__code__

    def check(number: int, frame: FrameType | None) -> None:
        nonlocal seen, ticks
        ticks = ticks + 1 if calls.number == seen else 0
        seen = calls.number
        is_ending = frame is not None and frame.f_code is ending  # raising here would leave `number` odd
        if ticks >= TICKS and seen % 2 and not is_ending:
            ticks = 0
            raise Hung(f"hung for more than {timeout_s:g} s (worker.step_timeout_s)")

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, check)
    signal.siginterrupt(signal.SIGALRM, False)
    left, interval = signal.setitimer(signal.ITIMER_REAL, timeout_s / TICKS, timeout_s / TICKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - started)), interval)


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


def reset_result(result: Any) -> tuple[Any, Any]:
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


FPS = 30.0
"""Frames per second if the metadata of the environment have no `render_fps`."""


class CantRender(Exception):
    """Raised if the environment renders no frames; the message has the reason."""


def rendering(config: EnvConfig, mode: str = "rgb_array") -> EnvConfig:
    """Return the config of the same environment with this render mode; `human` opens a window."""
    return replace(config, kwargs={**config.kwargs, "render_mode": mode})


def frame(id: str, env: "gymnasium.Env[Any, Any]") -> Array:
    """Return the current frame, uint8 `[height, width, 3]`.

    Raise CantRender if the environment renders no frames, MissingExtra if a package is missing, or EnvFault if the
    environment raises.
    """
    try:
        picture: Any = env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f"{id} can't be drawn here: {error}") from error
    except NotImplementedError as error:
        raise CantRender(f"{id} has no render(): {modes(env)}") from error
    except Exception as error:
        raise as_fault("render", error) from error
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        given = f"shape {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise CantRender(f"{id} gives no frames: render() gave {given}, not [height, width, 3] ({modes(env)})")
    return picture.astype(np.uint8)


def frames_per_second(env: "gymnasium.Env[Any, Any]") -> float:
    """Return the frames per second from the environment's metadata, or FPS if the metadata has no number."""
    return float((env.metadata or {}).get("render_fps") or FPS)


def modes(env: "gymnasium.Env[Any, Any]") -> str:
    """Return a text that names the render modes in the environment's metadata."""
    names = ", ".join(map(str, (env.metadata or {}).get("render_modes") or []))
    return f"needed is render_mode=rgb_array; its metadata names {names or 'no render_modes'}"
