"""Environment variables for drawing without a screen."""

import os
import sys
from collections.abc import Mapping

DRAWING = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}


def headless() -> Mapping[str, str]:
    """Return the variables that pygame and MuJoCo need to draw without a screen, except variables that are set."""
    mujoco = {"MUJOCO_GL": "egl"} if sys.platform == "linux" and "DISPLAY" not in os.environ else {}
    return {name: value for name, value in {**DRAWING, **mujoco}.items() if name not in os.environ}


def has_display() -> bool:
    """Return whether windows can be shown. On Linux, they need an X or Wayland server."""
    return sys.platform != "linux" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
