"""Play episodes of trained policies: together for their returns, or one after another in a video or a window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.standalone import Caller
from drl_cli.deploy.video import Video
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.faults import CantRender, as_fault, frame, frames_per_second, modes, rendering
from drl_cli.envs.make import Env
from drl_cli.types import MASK, Array, EnvSpec
from drl_cli.utils.shown import score_text


class Game:
    """One episode, with its last observation, info and reward. Raise EnvFault if the environment raises."""

    def __init__(self, config: EnvConfig, spec: EnvSpec, seed: int) -> None:
        self.id, self.raw = config.id, Env(config, spec).raw
        self.reward, self.has_ended = 0.0, False
        try:
            self.obs, self.info = self.raw.reset(seed=seed)
        except Exception as error:
            raise as_fault("reset", error) from error

    def step(self, action: Any) -> None:
        try:
            self.obs, reward, terminated, truncated, self.info = self.raw.step(action)
        except Exception as error:
            raise as_fault("step", error) from error
        self.reward, self.has_ended = float(reward), bool(terminated or truncated)


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
