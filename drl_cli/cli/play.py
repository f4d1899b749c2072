"""drl-play: record a video of a run's policy, or show the policy in a window."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from drl_cli.cli.command import CHECKPOINT_HELP, ENV_HELP, OUTPUT_DIR_HELP, RUN_HELP, TRUST_HELP, option, run_command
from drl_cli.deploy.trained import acting, acting_config, find_step_and_config, open_step, stages, with_simulations
from drl_cli.errors import DONE, MISSING, UsageError
from drl_cli.run_folder.saved_run import read_json
from drl_cli.utils.machine import has_display, headless
from drl_cli.utils.outside import source_file
from drl_cli.utils.ranges import Count, Natural, Positive
from drl_cli.utils.seeding import integers
from drl_cli.utils.shown import print, relative_path, score_text

if TYPE_CHECKING:  # slow to import
    from drl_cli.deploy.play import Played
    from drl_cli.deploy.policy import TrainedPolicy


@dataclass(frozen=True)
class Options:
    """Options of drl-play."""

    WRITES: ClassVar = "drl-play writes into RUN/videos, and prints the path"

    run: str = option("latest", RUN_HELP)
    episodes: Count = option(1, "episodes, one after the other: the first ones of drl-eval")
    checkpoint: str = option("best", CHECKPOINT_HELP)
    env: str | None = option(None, ENV_HELP)
    evolution: bool = option(False, "one episode of each checkpoint, all from the same seed")
    only: Literal["failures"] | None = option(
        None, "failures: the worst episodes of the newest drl-eval below a return"
    )
    below: float | None = option(None, "the return of only=failures; none: the run's stop.return")
    live: bool = option(False, "show the environment in a window in place of a video; needs a display")
    seed: Natural = option(0, "another seed, other episodes; as in drl-eval")
    format: Literal["auto", "mp4", "gif"] = option("auto", "auto is mp4 if ffmpeg is found, else gif")
    fps: Positive | None = option(None, "frames per second; none: the environment's own")
    simulations: Natural | None = option(None, "simulations of each search (muzero ...), 0: none; none: as in training")
    max_steps: Count | None = option(None, "episodes are cut here; none: as in evaluations")
    trust: bool = option(False, TRUST_HELP)
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def main() -> None:
    """Run drl-play."""
    run_command("drl-play", Options, answer, "record a video of how a run's policy acts", positional="run")


def answer(options: Options) -> int:
    """Record the video without a screen, or show a window. Print the returns, and the path of the video."""
    if options.live:
        return show(options)
    os.environ.update(headless())
    print("\n".join(play(options)))
    return DONE


def show(options: Options) -> int:
    """Show the episodes in a window, and print the returns. Raise UsageError (exit 3) without a display."""
    if not has_display():
        raise UsageError("live=true needs a display, and there is none here; leave it out to record a video", MISSING)
    policy, policies, titles, seeds = _episodes(options)
    from drl_cli.deploy.play import watch

    with acting(policy.config, policy.run):
        max_steps = options.max_steps or policy.config.manage.max_episode_steps
        played = watch(policies, titles, seeds, max_steps)
    print("\n".join(_lines(played)))
    return DONE


def _episodes(options: Options) -> "tuple[TrainedPolicy, list[TrainedPolicy], list[str], list[int]]":
    """Return the run's policy, and the policy, the title and the seed of each episode."""
    if options.evolution and options.episodes > 1:
        raise UsageError("evolution=true plays one episode of each checkpoint: leave episodes out")
    step, config = find_step_and_config(options.run, options.checkpoint, options.output_dir, options.trust)
    config = acting_config(with_simulations(config, options.simulations), step.parents[1], options.env)
    policy = open_step(step, config)
    if options.only is not None or options.below is not None:
        seeds = failures(policy, options)
        return policy, [policy] * len(seeds), [f"{policy.config.algo_name}  {policy.trained}"] * len(seeds), seeds
    policies = stages(policy) if options.evolution else [policy] * options.episodes
    titles = [f"{policy.config.algo_name}  {stage.trained}" for stage in policies]
    seeds = integers(policy.config.seed, "confirm", options.episodes, index=options.seed)
    return policy, policies, titles, seeds * len(policies) if options.evolution else seeds


def failures(policy: "TrainedPolicy", options: Options) -> list[int]:
    """Return the seeds of the episodes with the lowest returns in the run's eval.json, at most `options.episodes`.

    Raise UsageError if no return is below `options.below`, or if eval.json is of another checkpoint or environment.
    """
    if options.only is None or options.evolution:
        raise UsageError("below and only=failures belong together, and evolution=true plays other episodes")
    below = policy.config.stop.return_ if options.below is None else options.below
    if below is None:
        raise UsageError("only=failures: the run has no stop.return; say below=RETURN")
    result, command = read_json(policy.run / "eval.json"), f"drl-eval run={relative_path(policy.run)} episodes=100"
    env = None if options.env is None else policy.config.env.name
    is_same = result.get("checkpoint") == policy.checkpoint.name and {"returns", "seeds"} <= result.keys()
    is_same = is_same and result.get("env") == env
    if not is_same or result.get("stochastic") or result.get("env_kwargs"):
        at = "" if options.checkpoint == "best" else f" checkpoint={options.checkpoint}"
        at += "" if options.env is None else f" env={options.env}"
        raise UsageError(f"only=failures reads the returns of a greedy evaluation of this checkpoint: {command}{at}")
    worst = sorted(zip(result["returns"], result["seeds"], strict=True))
    if not (seeds := [seed for value, seed in worst if value < below]):
        raise UsageError(
            f"only=failures: all {len(worst)} episodes reached {below:g}, the lowest {score_text(worst[0][0])}"
        )
    return seeds[: options.episodes]


def play(options: Options) -> list[str]:
    """Record the video. Return the lines to print. The last line is the path of the video."""
    suffix = suffix_of(options.format)
    policy, policies, titles, seeds = _episodes(options)
    from drl_cli.deploy.play import record

    config = policy.config
    kind = "evolution" if options.evolution else policy.checkpoint.name
    name = f"{kind}-{options.only or f'seed{options.seed}'}"
    name += f"-{len(seeds)}episodes" if len(seeds) > 1 and not options.evolution else ""
    path = policy.run / "videos" / f"{name}.{suffix}"
    with acting(config, path):
        max_steps = options.max_steps or config.manage.max_episode_steps
        played = record(policies, titles, seeds, path, max_steps, options.fps)
    return [*_lines(played), relative_path(path)]


def _lines(played: "Sequence[Played]") -> list[str]:
    return [
        f"{episode.title}: return {score_text(episode.ret)}, {episode.steps} steps" + ", cut there" * episode.was_cut
        for episode in played
    ]


def suffix_of(format: str) -> str:
    """Return the suffix of the video's file. Raise UsageError (exit 3) if Pillow or ffmpeg is needed and missing."""
    from drl_cli.deploy.play import find_ffmpeg

    if source_file("PIL") is None:
        raise UsageError("drl-play needs Pillow:  pip install 'drl-cli[video]'", MISSING)
    if format == "mp4" and not find_ffmpeg():
        raise UsageError("format=mp4 needs ffmpeg: install it, or  pip install 'drl-cli[video]'", MISSING)
    return ("mp4" if find_ffmpeg() else "gif") if format == "auto" else format


if __name__ == "__main__":
    main()
