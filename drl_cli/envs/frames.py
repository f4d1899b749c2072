"""Pictures of an environment, without a screen."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from drl_cli.envs.config import EnvConfig, MissingExtra
from drl_cli.envs.faults import as_fault
from drl_cli.types import Array

FPS = 30.0
"""Frames per second of an environment that does not say how many it has."""


class CantRender(Exception):
    """An environment that gives no frames; the message says why."""


def rendering(config: EnvConfig) -> EnvConfig:
    """The environment, made such that it gives frames."""
    return replace(config, kwargs={**config.kwargs, "render_mode": "rgb_array"})


def frame(id: str, env: "gymnasium.Env[Any, Any]") -> Array:
    """What it looks like now, bytes `[height, width, 3]`.

    Raises CantRender, MissingExtra, and EnvFault where the environment raises.
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
    """How many steps of the environment are a second of it, if it says so."""
    return float((env.metadata or {}).get("render_fps") or FPS)


def modes(env: "gymnasium.Env[Any, Any]") -> str:
    """What its metadata says that it can render."""
    names = ", ".join(map(str, (env.metadata or {}).get("render_modes") or []))
    return f"needed is render_mode=rgb_array; its metadata names {names or 'no render_modes'}"
