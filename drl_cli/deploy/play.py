"""Record episodes of trained policies in one video, one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drl_cli.deploy.episodes import Game
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.video import Video
from drl_cli.envs.frames import CantRender, frame, frames_per_second, rendering
from drl_cli.types import MASK

HOLD_S = 1.0
"""Seconds for which the last frame of an episode is shown."""


@dataclass(frozen=True)
class Played:
    """A recorded episode: undiscounted return, steps, and whether `max_steps` cut it."""

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
            played.append(_record_one(policy, title, game, video, max_steps))
            game.raw.close()
    return played


def _game(policy: TrainedPolicy, seed: int) -> Game:
    try:
        return Game(rendering(policy.env), policy.spec, seed)
    except TypeError as error:  # the constructor does not take render_mode
        raise CantRender(f"{policy.env.id} can't be made with render_mode=rgb_array: {error}") from error


def _record_one(policy: TrainedPolicy, title: str, game: Game, video: Video, max_steps: int) -> Played:
    policy.reset()
    id, ret, steps = policy.config.env.id, 0.0, 0
    picture = frame(id, game.raw)
    video.write(picture, [title, "return 0.0   step 0"])
    while not game.has_ended and steps < max_steps:
        game.step(policy(game.obs, game.info.get(MASK), game.reward))
        ret, steps = ret + game.reward, steps + 1
        picture = frame(id, game.raw)
        video.write(picture, [title, f"return {ret:.1f}   step {steps:,}"])
    for _ in range(round(HOLD_S * video.fps)):
        video.write(picture, [title, f"return {ret:.1f}   step {steps:,}"])
    return Played(title, ret, steps, not game.has_ended)
