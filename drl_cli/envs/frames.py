"""Render frames of an environment for videos, without a screen."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from drl_cli.envs.config import EnvConfig, MissingExtra
from drl_cli.envs.faults import as_fault
from drl_cli.types import Array

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
