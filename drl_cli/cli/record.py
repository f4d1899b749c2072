"""drl-record: write a dataset of episodes of a run's policy or of random actions, or of what a run's replay holds."""

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drl_cli.cli.command import ENV_HELP, OUTPUT_DIR_HELP, RUN_HELP, TRUST_HELP, option, run_command
from drl_cli.config.config import Config
from drl_cli.deploy.trained import acting, acting_config, find_step_and_config, open_step
from drl_cli.errors import CHECKPOINT, DONE, CheckpointError, UsageError, as_usage_error
from drl_cli.preflight.environment import environment_spec
from drl_cli.settings.build import option_values
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.trust import remember
from drl_cli.utils.clock import now
from drl_cli.utils.ranges import Count, Natural
from drl_cli.utils.shown import print, relative_path, score_text
from drl_cli.version import __version__

if TYPE_CHECKING:  # slow to import
    from drl_cli.data.draft import Episode, Written
    from drl_cli.data.write import Header

DEFAULT_EPISODES = 100
EXAMPLES = (
    "drl-record latest episodes=100",
    "drl-record run=latest steps=1000000 stochastic=true output=minari:hopper/expert-v0",
    "drl-record env=Pendulum-v1 policy=random episodes=50 output=random.npz",
    "drl-record run=latest replay=true",
)


@dataclass(frozen=True)
class Options:
    """Options of drl-record."""

    run: str | None = option(None, f"{RUN_HELP}; latest if there is no env")
    env: str | None = option(None, f"without run, for policy=random; with run: {ENV_HELP}")
    policy: Literal["run", "random"] | None = option(None, "whose actions: run (the default), or random")
    episodes: Count | None = option(None, f"number of episodes (default {DEFAULT_EPISODES})")
    steps: Count | None = option(None, "number of steps in place of episodes; the last episode may be cut")
    stochastic: bool = option(False, "explore as in training, instead of the best actions")
    replay: bool = option(False, "write what the run's saved replay holds: all its policies, the exploration included")
    checkpoint: str | None = option(None, "best (the default), last (with replay=true), env steps or a folder's name")
    seed: Natural = option(0, "another seed, other episodes")
    max_steps: Count | None = option(None, "episodes are cut here; none: as in evaluations")
    reference: tuple[float, ...] | None = option(None, "[random,expert]: their returns, for normalised scores")
    output: str | None = option(None, "a folder or minari:ID (Minari's format), or a file .npz; none: RUN/data/...")
    format: Literal["hdf5", "arrow"] = option("hdf5", "Minari's storage format")
    trust: bool = option(False, TRUST_HELP)
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def main() -> None:
    """Run drl-record."""
    about = "write a dataset for learning from data"
    run_command("drl-record", Options, answer, about, examples=EXAMPLES, positional="run")


def answer(options: Options) -> int:
    """Write the dataset. Print its counts and returns, and its path."""
    check(options)
    if options.replay:
        path, written = record_replay(options)
    elif options.env is not None and options.run is None:
        path, written = record_env(options)
    else:
        path, written = record_run(options)
    print("\n".join([*lines(written), relative_path(path)]))
    if written.ended_by is not None:
        print("interrupted: the dataset has the episodes so far", file=sys.stderr)
        raise written.ended_by
    return DONE


def check(options: Options) -> None:
    """Raise UsageError if options contradict each other."""
    problems = []
    has_run = options.env is None or options.run is not None
    if not has_run and options.policy == "run":
        problems.append("policy=run needs a run: say run=RUN, or policy=random")
    if options.episodes is not None and options.steps is not None:
        problems.append("episodes and steps: say one of them")
    if options.replay:
        given = {name: getattr(options, name) for name in ("env", "policy", "episodes", "steps", "max_steps")}
        given["stochastic"] = options.stochastic or None
        given["seed"] = options.seed or None
        if names := [name for name, value in given.items() if value is not None]:
            problems.append(f"replay=true writes all that the replay of a run holds: leave {' and '.join(names)} out")
    elif not has_run or options.policy == "random":
        if options.stochastic:
            problems.append("stochastic=true is for the policy of a run; random actions are random: leave it out")
        if not has_run and options.checkpoint is not None:
            problems.append("checkpoint is for the policy of a run: leave it out")
    if problems:
        raise UsageError(problems)


def record_env(options: Options) -> "tuple[Path, Written]":
    """Record random actions in the environment that `env` names."""
    command = read_command([f"env={options.env}"])
    check_command(command)
    config = compose(command.overrides)
    spec = environment_spec(
        dataclasses.replace(config, env=dataclasses.replace(config.env, frame_storage="none")), False
    )
    from drl_cli.deploy.recording import Recorder, random_policy

    env = config.env.for_evaluation(config.manage.env_kwargs)
    name = re.sub(r"[/:]", "_", config.env.name)
    path = output_path(options, Path(options.output_dir) / "data" / name / f"random-{_size(options)}")
    with acting(config, path):
        act = partial(random_policy, spec, options.seed)
        recorder = Recorder(env, spec, act, _max_steps(options, config))
        play = partial(recorder.episodes, options.seed, options.seed, *_counts(options))
        return path, save(options, path, recorder.header, play, {"policy": "random", "seed": options.seed})


def record_run(options: Options) -> "tuple[Path, Written]":
    """Record the policy of a run, or random actions in the run's environment."""
    step, config = find_step_and_config(
        options.run or "latest", options.checkpoint or "best", options.output_dir, options.trust
    )
    trained = open_step(step, acting_config(config, step.parents[1], options.env))
    from drl_cli.deploy.recording import Recorder, random_policy, run_policy

    kind = "random" if options.policy == "random" else "stochastic" if options.stochastic else "greedy"
    names = [step.name, *([kind] if kind != "greedy" else []), _size(options)]
    path = output_path(options, trained.run / "data" / "-".join(names))
    with acting(config, path):
        is_random = kind == "random"
        act = partial(random_policy, trained.spec) if is_random else partial(run_policy, trained, kind)
        recorder = Recorder(trained.env, trained.spec, partial(act, options.seed), _max_steps(options, config))
        play = partial(recorder.episodes, config.seed, options.seed, *_counts(options))
        source = {"policy": kind, "seed": options.seed, **_of_run(step, config, trained.manifest)}
        return path, save(options, path, recorder.header, play, source)


def record_replay(options: Options) -> "tuple[Path, Written]":
    """Record what the replay in a checkpoint holds."""
    step, config = find_step_and_config(
        options.run or "latest", options.checkpoint or "last", options.output_dir, options.trust
    )
    spec = environment_spec(config, trains=False)
    from drl_cli.deploy.recording import check_replay, header_of, replay_episodes
    from drl_cli.run_folder.checkpoint import read_manifest

    check_replay(config, spec)
    path = output_path(options, step.parents[1] / "data" / f"replay-{step.name}")
    with acting(config, path), as_usage_error(CheckpointError, exit_code=CHECKPOINT):
        header, steps = header_of(config.env, spec)
        source = {"policy": "replay", **_of_run(step, config, read_manifest(step))}
        return path, save(
            options,
            path,
            header,
            lambda done: islice(replay_episodes(config, steps, step), done.episodes, None),
            source,
        )


def save(
    options: Options,
    path: Path,
    header: "Header",
    play: "Callable[[Written], Iterable[Episode]]",
    source: Mapping[str, Any],
) -> "Written":
    """Write the episodes of `play` with their provenance. If this fails, say where the episodes so far are.

    `play` gets the counts of the episodes that an interrupted command has left. Raise UsageError.
    """
    from drl_cli.data.dataset import DatasetError
    from drl_cli.data.draft import draft_path
    from drl_cli.data.find import consent_file, is_draft
    from drl_cli.data.open import as_reference
    from drl_cli.data.write import write

    reference = None if options.reference is None else as_reference(options.reference)
    source = {"version": __version__, "command": ["drl-record", *sys.argv[1:]], **source}
    header = dataclasses.replace(header, algorithm=source.get("algo", "random"), provenance=source, reference=reference)
    draft = draft_path(path)
    try:
        written = write(path, header, lambda done: told(play(done), done), options.format)
    except DatasetError:
        raise
    except BaseException:
        if is_draft(draft):
            remember(consent_file(str(draft)), {"env": {"id": header.env}})
        kept = f"the episodes so far are in {relative_path(draft)}; the same command continues"
        print(kept if is_draft(draft) else "nothing was recorded, because no episode had ended", file=sys.stderr)
        raise
    remember(consent_file(str(path)), {"env": {"id": header.env}})
    return written


def told(episodes: "Iterable[Episode]", done: "Written", period_s: float = 10.0) -> "Iterator[Episode]":
    """Yield the episodes. Print how many there are so far to stderr every `period_s` seconds."""
    steps, last = done.steps, now()
    if done.episodes:
        print(f"continues after {steps:,} steps in {done.episodes:,} episodes", file=sys.stderr, flush=True)
    for count, episode in enumerate(episodes, done.episodes + 1):
        steps += len(episode.reward)
        if now() - last >= period_s:
            last = now()
            print(f"{steps:,} steps in {count:,} episodes so far", file=sys.stderr, flush=True)
        yield episode


def output_path(options: Options, default: Path) -> Path:
    """Return where to write. Raise DatasetError if something is there already."""
    from drl_cli.data.write import find_output

    return find_output(options.output or str(default), options.format)


def _of_run(step: Path, config: Config, manifest: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: manifest[name] for name in ("env_steps", "opt_steps", "version")}
    usual = option_values("env", config.env.name).get("kwargs", {})
    kwargs = {name: value for name, value in config.env.kwargs.items() if usual.get(name) != value}
    run = {"algo": config.algo_name, "run": step.parents[1].name, "checkpoint": step.name, "weights": counts}
    return run | ({"env_kwargs": kwargs} if kwargs else {})


def _counts(options: Options) -> tuple[int | None, int | None]:
    """Return the number of episodes or None, and of steps or None."""
    return (None if options.steps else options.episodes or DEFAULT_EPISODES), options.steps


def _size(options: Options) -> str:
    """Return the end of a dataset's name: how much, and which seed."""
    episodes, steps = _counts(options)
    return f"{f'{episodes}episodes' if steps is None else f'{steps}steps'}-seed{options.seed}"


def _max_steps(options: Options, config: Config) -> int:
    return options.max_steps or config.manage.max_episode_steps


def lines(written: "Written") -> list[str]:
    """Return lines with the counts and returns of a recording."""
    found: dict[str, Any] = {**written.statistics()}  # Any: numbers, and a list
    num, pieces = written.episodes, len(written.pieces)
    counts = f"{written.steps:,} steps in {num:,} episode{'s' * (num > 1)}, {written.terminations:,} of them terminated"
    if pieces:
        counts += f"; {pieces:,} of them only in part, without {'their returns' if pieces > 1 else 'its return'}"
    if not written.returns:
        return [counts]
    mean, std, low, high = (score_text(found[f"return_{name}"]) for name in ("mean", "std", "min", "max"))
    return [counts, f"return: mean {mean}  std {std}  min {low}  max {high}"]


if __name__ == "__main__":
    main()
