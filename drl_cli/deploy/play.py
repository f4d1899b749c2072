"""Play episodes of trained policies: together for their returns, or one after another in a video or a window."""

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.standalone import Caller
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.faults import CantRender, as_fault, frame, frames_per_second, modes, rendering, reset_result
from drl_cli.envs.make import Env
from drl_cli.metrics.tensorboard import Film
from drl_cli.types import MASK, Array, EnvSpec
from drl_cli.utils.shown import score_text


class Game:
    """One episode, with its last observation, info and reward. Raise EnvFault if the environment raises."""

    def __init__(self, config: EnvConfig, spec: EnvSpec, seed: int) -> None:
        self.id, self.env = config.id, Env(config, spec)
        self.raw = self.env.raw
        self.reward, self.terminated, self.truncated = 0.0, False, False
        try:
            self.obs, self.info = reset_result(self.raw.reset(seed=seed))
        except Exception as error:
            raise as_fault("reset", error) from error

    def step(self, action: Any) -> None:
        try:
            self.obs, reward, terminated, truncated, self.info = self.raw.step(action)
            self.reward, self.terminated, self.truncated = float(reward), bool(terminated), bool(truncated)
        except Exception as error:
            raise as_fault("step", error) from error

    @property
    def has_ended(self) -> bool:
        return self.terminated or self.truncated


Watch = Callable[[Any, Any, Any, Array], None]  # Any: batches of observations, masks and actions


def play_together(policy: Caller, trained: TrainedPolicy, seeds: Sequence[int], watch: Watch | None = None) -> Array:
    """Play one episode per seed, all at the same time. Return their undiscounted returns `[episodes]`.

    `policy` is `trained` or its exported form. `watch` is called in every step with the observations, masks, actions,
    and a bool array `[episodes]` that is true for episodes that have not ended.
    """
    games = [Game(trained.env, trained.spec, seed) for seed in seeds]
    policy.reset()
    returns = np.zeros(len(games))
    for _ in range(trained.config.manage.max_episode_steps):
        running = np.array([not game.has_ended for game in games])
        if not running.any():
            break
        obs, masks = trained.units.joined([game.obs for game in games]), _masks([game.info for game in games])
        actions = policy(obs, masks, [game.reward for game in games])
        if watch is not None:
            watch(obs, masks, actions, running)
        for i, action in enumerate(trained.units.apart(actions, len(games))):
            if running[i]:
                games[i].step(action)
                returns[i] += games[i].reward
    for game in games:
        game.raw.close()
    return returns


def _masks(infos: Sequence[Any]) -> Any:
    if MASK not in infos[0]:
        return None
    masks = [info[MASK] for info in infos]
    return tuple(map(np.stack, zip(*masks, strict=True))) if isinstance(masks[0], tuple) else np.stack(masks)


LEAST_HEIGHT = 240
"""Frames of a lower height [pixels] are enlarged by an integer factor, so that text is readable."""
MOST_WIDTH, MOST_FPS = 320, 25.0
"""Limits of a GIF [pixels, frames/s], because its frames stay in memory until the end and compress badly."""
END_S = 60.0
"""Maximum time [s] for ffmpeg to write the end of a video."""


class Video:
    """Write a video file. The file is created when the `with` block ends without an exception."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps = path, fps
        self._draft = path.with_name(f".{os.getpid()}.{path.name}")
        self._encoder: Mp4 | Film | None = None

    def __enter__(self) -> "Video":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self

    def write(self, frame: Array, lines: list[str]) -> None:
        """Append a frame, uint8 `[height, width, 3]`, with the text `lines` in the upper left corner."""
        picture = captioned(frame, lines)
        if self._encoder is None and self.path.suffix == ".mp4":
            self._encoder = Mp4(self._draft, picture.shape[1], picture.shape[0], self.fps)
        elif self._encoder is None:
            self._encoder = Film(self.fps, math.ceil(self.fps / MOST_FPS), MOST_WIDTH, math.inf, math.inf)
        if isinstance(self._encoder, Mp4):
            self._encoder.write(picture)
        else:
            self._encoder.step(lambda: picture)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if isinstance(self._encoder, Mp4):
                self._encoder.close()
            elif self._encoder is not None and kind is None:
                self._draft.write_bytes(self._encoder.gif())
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


def find_ffmpeg() -> str | None:
    if found := shutil.which("ffmpeg"):
        return found
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # RuntimeError: the package has no ffmpeg for this machine
        return None


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


HOLD_S = 1.0
"""Seconds for which the last frame of an episode is shown."""


@dataclass(frozen=True)
class Played:
    """A played episode: undiscounted return, steps, and whether `max_steps` cut it."""

    title: str
    ret: float
    steps: int
    was_cut: bool


def record(
    policies: Sequence[TrainedPolicy],
    titles: Sequence[str],
    seeds: Sequence[int],
    path: Path,
    max_steps: int,
    fps: float | None,
) -> list[Played]:
    """Record one episode of each policy with the seed at the same index, and write the video to `path`.

    Raise CantRender, MissingExtra, EnvFault or OSError. In that case no file is left behind.
    """
    game, played = _game(policies[0], seeds[0]), []
    with Video(path, fps or frames_per_second(game.raw)) as video:
        for i, (policy, title) in enumerate(zip(policies, titles, strict=True)):
            game = _game(policy, seeds[i]) if i else game
            head = [f"{policy.config.env.name}   seed {seeds[i]}", title]
            played.append(_play_one(policy, title, game, max_steps, partial(_write, video, game, head, max_steps)))
            game.raw.close()
    return played


def _write(video: Video, game: Game, head: Sequence[str], max_steps: int, ret: float, steps: int) -> None:
    """Append the present frame with its caption, the last frame of an episode for another HOLD_S seconds."""
    picture = frame(game.id, game.raw)
    is_last = game.has_ended or steps == max_steps
    for _ in range(1 + is_last * round(HOLD_S * video.fps)):
        video.write(picture, [*head, f"return {score_text(ret)}   step {steps:,}"])


def watch(
    policies: Sequence[TrainedPolicy], titles: Sequence[str], seeds: Sequence[int], max_steps: int
) -> list[Played]:
    """Show one episode of each policy in the environment's own window, at the environment's speed.

    Raise CantRender if the environment has no window, or the other errors of `record`.
    """
    played = []
    for policy, title, seed in zip(policies, titles, seeds, strict=True):
        game = _game(policy, seed, "human")
        if "human" not in (game.raw.metadata or {}).get("render_modes", []):
            raise CantRender(f"{policy.env.id} has no window (render_mode=human): {modes(game.raw)}")
        played.append(_play_one(policy, title, game, max_steps, lambda *_: None))
        game.raw.close()
    return played


def _game(policy: TrainedPolicy, seed: int, mode: str = "rgb_array") -> Game:
    try:
        return Game(rendering(policy.env, mode), policy.spec, seed)
    except TypeError as error:  # the constructor does not take render_mode
        advice = "give its constructor the argument render_mode=None, and write a method render"
        raise CantRender(f"{policy.env.id} can't be made with render_mode={mode}: {error}; {advice}") from error


def _play_one(
    policy: TrainedPolicy, title: str, game: Game, max_steps: int, show: Callable[[float, int], None]
) -> Played:
    """Play an episode. Call `show` with the return and the steps so far, at the start and after every step."""
    policy.reset()
    ret, steps = 0.0, 0
    show(ret, steps)
    while not game.has_ended and steps < max_steps:
        game.step(policy(game.obs, game.info.get(MASK), game.reward))
        ret, steps = ret + game.reward, steps + 1
        show(ret, steps)
    return Played(title, ret, steps, not game.has_ended)
