"""Film: the frames of one episode as an animated GIF. A longer episode has fewer frames per second."""

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

MAX_FRAMES = 128
MAX_WIDTH = 240
"""Maximum width of a frame in pixels."""
MAX_BYTES = 900_000
MIN_MS = 20
"""Shortest duration of a frame in ms, because browsers slow down faster GIFs."""


class Film:
    """Keeps the frame of every step. At MAX_FRAMES frames, drops every second frame and halves the frame rate.

    The GIF shows the whole episode at `fps` steps per second.
    """

    def __init__(self, fps: float) -> None:
        self.fps, self.stride, self.steps = fps, 1, 0
        self.frames: list[Any] = []  # PIL.Image.Image

    def step(self, render: Callable[[], Any]) -> None:
        """Advance one step, and render if the film keeps this step. Raise ValueError if `render` returns no picture."""
        if self.steps % self.stride == 0 and len(self.frames) == MAX_FRAMES:
            self._thin()
        if self.steps % self.stride == 0:
            self.frames.append(_picture(render()))
        self.steps += 1

    def gif(self) -> bytes:
        """Return the film as a GIF. While the GIF is larger than MAX_BYTES, drop every second frame."""
        while True:
            content = io.BytesIO()
            duration = max(MIN_MS, round(1000 * self.stride / self.fps))
            first, *rest = self.frames
            first.save(content, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
            if content.tell() <= MAX_BYTES or not rest:
                return content.getvalue()
            self._thin()

    def _thin(self) -> None:
        self.frames, self.stride = self.frames[::2], 2 * self.stride


def size_of(gif: bytes) -> tuple[int, int]:
    """Return the width and height of a GIF."""
    width, height = struct.unpack_from("<HH", gif, 6)
    return width, height


def _picture(frame: Any) -> Any:
    """Convert a frame, uint8 `[height, width, 3]`, to a small picture with 256 colours."""
    from PIL import Image

    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ValueError(f"render() gives {got}, not uint8 [height, width, 3]")
    image = Image.fromarray(frame)
    if image.width > MAX_WIDTH:
        image = image.resize((MAX_WIDTH, max(1, image.height * MAX_WIDTH // image.width)))
    return image.quantize(256)
