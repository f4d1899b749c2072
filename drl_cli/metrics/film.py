"""Film: the frames of one episode, thinned out as it gets longer, as an animated GIF."""

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

MOST_FRAMES = 128
WIDTH = 240  # pixels, at most
MOST_BYTES = 900_000
LEAST_MS = 20  # what is shown faster, browsers show slowly


class Film:
    """Takes a frame at every call of `step` while there are few, of every second step from MOST_FRAMES on, and so on.

    It so shows the whole episode at the pace of its steps, `fps` of them in a second.
    """

    def __init__(self, fps: float) -> None:
        self.fps, self.stride, self.steps = fps, 1, 0
        self.frames: list[Any] = []  # PIL.Image.Image

    def step(self, render: Callable[[], Any]) -> None:
        """One step later; renders where its frame is wanted. Raises ValueError where that gives no picture."""
        if self.steps % self.stride == 0:
            if len(self.frames) == MOST_FRAMES:
                self._thin()
            if self.steps % self.stride == 0:
                self.frames.append(_picture(render()))
        self.steps += 1

    def gif(self) -> bytes:
        """The film so far, of at most MOST_BYTES, for which more frames may go."""
        while True:
            content = io.BytesIO()
            duration = max(LEAST_MS, round(1000 * self.stride / self.fps))
            first, *rest = self.frames
            first.save(content, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
            if content.tell() <= MOST_BYTES or not rest:
                return content.getvalue()
            self._thin()

    def _thin(self) -> None:
        self.frames, self.stride = self.frames[::2], 2 * self.stride


def size_of(gif: bytes) -> tuple[int, int]:
    """Width and height of a GIF."""
    width, height = struct.unpack_from("<HH", gif, 6)
    return width, height


def _picture(frame: Any) -> Any:
    """A frame `[height, width, 3]` of uint8 as a small picture of 256 colours."""
    from PIL import Image

    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ValueError(f"render() gives {got}, not uint8 [height, width, 3]")
    image = Image.fromarray(frame)
    if image.width > WIDTH:
        image = image.resize((WIDTH, max(1, image.height * WIDTH // image.width)))
    return image.quantize(256)
