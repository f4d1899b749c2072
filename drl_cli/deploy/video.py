"""Write frames with lines of text to a video: mp4 with ffmpeg, or an animated WebP or GIF with Pillow."""

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from drl_cli.types import Array

Format = Literal["mp4", "webp", "gif"]

LEAST_HEIGHT = 240
"""Frames of a lower height [pixels] are enlarged by an integer factor, so that text is readable."""
MOST_WIDTH, MOST_FPS = 320, 25.0
"""Limits of WebP and GIF [pixels, frames/s], because their frames stay in memory until the end and compress badly."""


END_S = 60.0
"""Maximum time [s] for ffmpeg to write the end of a video."""


class Video:
    """Write a video file. The file is created when the `with` block ends without an exception."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps = path, fps
        self._draft = path.with_name(f".{os.getpid()}.{path.name}")
        self._encoder: Mp4 | Animation | None = None

    def __enter__(self) -> "Video":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self

    def write(self, frame: Array, lines: list[str]) -> None:
        """Append a frame, uint8 `[height, width, 3]`, with the text `lines` in the upper left corner."""
        picture = captioned(frame, lines)
        if self._encoder is None:
            encoder = Mp4 if self.path.suffix == ".mp4" else Animation
            self._encoder = encoder(self._draft, picture.shape[1], picture.shape[0], self.fps)
        self._encoder.write(picture)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if self._encoder is not None:
                self._encoder.close()
            if kind is None:
                os.replace(self._draft, self.path)
        finally:
            self._draft.unlink(missing_ok=True)


class Mp4:
    """Write frames, uint8 `[height, width, 3]`, as H.264. Raise OSError with ffmpeg's message if ffmpeg fails."""

    def __init__(self, path: Path, width: int, height: int, fps: float) -> None:
        ffmpeg = find_ffmpeg()
        assert ffmpeg is not None
        given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
        even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-crf", "23", "-movflags", "+faststart"]
        self.size = (height, width, 3)
        self.process = subprocess.Popen(
            [ffmpeg, "-y", "-loglevel", "error", *given, "-an", *even, str(path)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def write(self, frame: Array) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(fitted(frame, self.size).tobytes())
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        try:
            _, errors = self.process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise OSError(f"ffmpeg does not end within {END_S:g} s") from None
        if self.process.returncode:
            raise OSError(f"ffmpeg: {errors.decode().strip() or f'exit code {self.process.returncode}'}")


class Animation:
    """Write WebP or GIF with Pillow, at most MOST_WIDTH pixels wide, with at most MOST_FPS frames per second."""

    def __init__(self, path: Path, width: int, height: int, fps: float) -> None:
        self.path, self.every = path, int(np.ceil(fps / MOST_FPS))
        shrink = max(1.0, width / MOST_WIDTH)
        self.size = (round(height / shrink), round(width / shrink), 3)
        self.duration_ms, self.count = round(1000 * self.every / fps), 0
        self.frames: list[Any] = []  # Any: Pillow's images

    def write(self, frame: Array) -> None:
        from PIL import Image

        if self.count % self.every == 0:
            self.frames.append(Image.fromarray(fitted(frame, self.size)))
        self.count += 1

    def close(self) -> None:
        if self.frames:
            first, *rest = self.frames
            first.save(self.path, save_all=True, append_images=rest, duration=self.duration_ms, loop=0, quality=80)


def find_ffmpeg() -> str | None:
    """Return the path of ffmpeg, from PATH or the package imageio-ffmpeg, or None if there is none."""
    if found := shutil.which("ffmpeg"):
        return found
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # RuntimeError: the package has no ffmpeg for this machine
        return None


def best_format() -> Format:
    """Return mp4 if ffmpeg is installed, else webp or gif. Raise ModuleNotFoundError without Pillow."""
    from PIL import features

    return "mp4" if find_ffmpeg() else "webp" if features.check("webp") else "gif"


def captioned(frame: Array, lines: list[str]) -> Array:
    """Return a copy with white text on a dark ground in the upper left corner. Enlarge a frame of low height."""
    from PIL import Image, ImageDraw, ImageFont

    times = -(-LEAST_HEIGHT // frame.shape[0]) if frame.shape[0] < LEAST_HEIGHT else 1
    picture = Image.fromarray(frame.repeat(times, 0).repeat(times, 1))
    if lines:
        size, text = max(11, picture.height // 28), "\n".join(lines)
        draw, font = ImageDraw.Draw(picture, "RGBA"), ImageFont.load_default(size)
        box = draw.multiline_textbbox((size // 2, size // 3), text, font=font)
        draw.rectangle((0, 0, box[2] + size // 2, box[3] + size // 3), fill=(0, 0, 0, 150))
        draw.multiline_text((size // 2, size // 3), text, font=font, fill=(255, 255, 255, 255))
    return np.asarray(picture)


def fitted(frame: Array, size: tuple[int, ...]) -> Array:
    if frame.shape == size:
        return frame
    from PIL import Image

    return np.asarray(Image.fromarray(frame).resize((size[1], size[0])))
