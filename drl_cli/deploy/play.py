"""Play episodes of trained policies, one after another: recorded in one video, or in a window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drl_cli.deploy.episodes import Game
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.video import Video
from drl_cli.envs.frames import CantRender, frame, frames_per_second, modes, rendering
from drl_cli.types import MASK
from drl_cli.utils.shown import score_text

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
