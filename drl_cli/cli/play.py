"""drl-play: a video of a run's policy."""

import os
import sys
from dataclasses import dataclass, field
from typing import Literal

from drl_cli.cli.command import run_command
from drl_cli.deploy.trained import Trained, all_steps, open_trained
from drl_cli.envs.config import EnvError, EnvFault, MissingExtra
from drl_cli.errors import DONE, MISSING, RESOURCES, USER_CODE, UsageError, users_errors
from drl_cli.runs.end_text import relative_path
from drl_cli.utils.ranges import Count, Natural, Positive
from drl_cli.utils.seeding import integers

HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
"""Environment variables for drawing without a screen, where the user has not set them."""


@dataclass(frozen=True)
class Options:
    """Options of drl-play."""

    run: str = field(default="latest", metadata={"help": "a path, latest, a glob or the start of a run id"})
    episodes: Count = field(default=1, metadata={"help": "episodes, one after the other: the first ones of drl-eval"})
    checkpoint: str = field(default="best", metadata={"help": "best, last, a number of env steps or a folder's name"})
    evolution: bool = field(default=False, metadata={"help": "one episode of each checkpoint, all from the same seed"})
    seed: Natural = field(default=0, metadata={"help": "another seed, other episodes; as in drl-eval"})
    format: Literal["auto", "mp4", "webp", "gif"] = field(
        default="auto", metadata={"help": "auto is mp4 if ffmpeg is found"}
    )
    fps: Positive | None = field(default=None, metadata={"help": "frames per second; none: the environment's own"})
    max_steps: Count | None = field(default=None, metadata={"help": "episodes are cut here; none: as in evaluations"})
    output_dir: str = field(default="outputs", metadata={"help": "where the runs are"})


def main() -> None:
    """Run drl-play."""
    run_command("drl-play", Options, answer, "record a video of how a run's policy acts", positional="run")


def answer(options: Options) -> int:
    """Record the video without a screen, and print the returns and the path."""
    for name, value in HEADLESS.items():
        os.environ.setdefault(name, value)
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    print("\n".join(play(options)))
    return DONE


def play(options: Options) -> list[str]:
    """Record; returns what there is to say, the video's path last. Raises UsageError."""
    if options.evolution and options.episodes > 1:
        raise UsageError("evolution=true records one episode of each checkpoint: leave episodes out")
    suffix = _suffix(options.format)
    trained = open_trained(options.run, options.checkpoint, options.output_dir)
    from drl_cli.deploy.play import record
    from drl_cli.deploy.video import VideoFailed
    from drl_cli.envs.frames import CantRender

    config = trained.config
    stages = _stages(trained) if options.evolution else [trained] * options.episodes
    titles = [f"{config.algo.name}  {stage.manifest['env_steps']:,} env steps" for stage in stages]
    seeds = integers(config.seed, "confirm", options.episodes, index=options.seed)
    seeds = seeds * len(stages) if options.evolution else seeds
    path = trained.run / "videos" / f"{_name(options, trained)}.{suffix}"
    with users_errors(config.outside_modules):
        try:
            policies = [stage.policy() for stage in stages]
            steps = options.max_steps or config.manage.max_episode_steps
            played = record(policies, titles, seeds, path, steps, options.fps)
        except CantRender as error:
            raise UsageError(str(error)) from error
        except MissingExtra as error:
            raise UsageError(str(error), MISSING) from error
        except (EnvFault, EnvError) as error:
            raise UsageError(f"{config.env.id}: {error}", USER_CODE) from error
        except (VideoFailed, OSError) as error:
            raise UsageError(f"{path}: {error}", RESOURCES) from error
    lines = [
        f"{episode.title}: return {episode.ret:.1f}, {episode.steps} steps{', cut there' if episode.was_cut else ''}"
        for episode in played
    ]
    return [*lines, relative_path(path)]


def _suffix(format: str) -> str:
    """The video's format; raises UsageError (exit 3) where what makes it is missing."""
    from drl_cli.deploy.video import best_format, find_ffmpeg

    try:
        best = best_format()
    except ModuleNotFoundError as error:
        raise UsageError("drl-play needs Pillow:  pip install 'drl-cli[video]'", MISSING) from error
    if format == "mp4" and not find_ffmpeg():
        raise UsageError("format=mp4 needs ffmpeg: install it, or  pip install 'drl-cli[video]'", MISSING)
    return best if format == "auto" else format


def _stages(trained: Trained) -> list[Trained]:
    """The run's checkpoints in order of their env steps, one for each number of them."""
    stages = [trained.at(step) for step in all_steps(trained.run)]
    return sorted({stage.manifest["env_steps"]: stage for stage in stages}.values(), key=_env_steps)


def _env_steps(stage: Trained) -> int:
    return int(stage.manifest["env_steps"])


def _name(options: Options, trained: Trained) -> str:
    name = "evolution" if options.evolution else trained.checkpoint.name
    return "-".join([name, f"seed{options.seed}"] + [f"{options.episodes}episodes"] * (options.episodes > 1))


if __name__ == "__main__":
    main()
