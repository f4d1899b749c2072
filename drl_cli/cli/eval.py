"""drl-eval: play the saved policies of runs on new episode seeds, print a table, and write eval.json into each run."""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import yaml

from drl_cli.algos.lookup import module_path
from drl_cli.cli.command import CHECKPOINT_HELP, ENV_HELP, OUTPUT_DIR_HELP, RUN_HELP, TRUST_HELP, option, run_words
from drl_cli.config.config import Config
from drl_cli.deploy.trained import acting_config, with_simulations
from drl_cli.errors import BELOW, CHECKPOINT, DONE, RESOURCES, USER_CODE, ReportedError, UsageError, as_usage_error
from drl_cli.preflight.environment import environment_spec
from drl_cli.run_folder.find import check_format, find_runs, find_saved_step, find_step, is_folder_of_runs, read_config
from drl_cli.run_folder.saved_run import Run, read_json
from drl_cli.runs.comparison import estimate, interval
from drl_cli.runs.groups import grouped
from drl_cli.runs.text_table import between, table
from drl_cli.settings.options import parse, usage, without_flags
from drl_cli.utils.outside import raised, raised_by
from drl_cli.utils.ranges import Count, Natural
from drl_cli.utils.seeding import integers
from drl_cli.utils.shown import print, score_text

if TYPE_CHECKING:  # slow to import
    from drl_cli.runtime.roles.evaluator import Score

KWARGS = "env.kwargs."
EXAMPLES = (
    "drl-eval run=latest episodes=100 min_return=190",
    "drl-eval runs=[outputs/CartPole-v1/*] checkpoint=last stochastic=true",
    "drl-eval latest env.kwargs.gravity=-5",
)


@dataclass(frozen=True)
class Options:
    """Options of drl-eval. `env.kwargs.X=...` also changes an argument of the environment."""

    WRITES: ClassVar = "drl-eval writes RUN/eval.json"

    run: str = option("latest", RUN_HELP)
    runs: tuple[str, ...] | None = option(None, "[GLOB,...]: several runs, as drl-compare takes them")
    episodes: Count = option(20, "episodes, each with its own seed, all at once")
    checkpoint: str = option("best", CHECKPOINT_HELP)
    env: str | None = option(None, ENV_HELP)
    seed: Natural = option(0, "another seed, other episodes; none is one of training's")
    stochastic: bool = option(False, "explore as in training, instead of the best actions")
    simulations: Natural | None = option(None, "simulations of each search (muzero ...), 0: none; none: as in training")
    min_return: float | None = option(None, "exit 9 when the mean of a run is below it")
    trust: bool = option(False, TRUST_HELP)
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def main() -> None:
    """Run drl-eval."""
    about = "play a run's saved policy on fresh episode seeds"
    run_words(lambda words: evaluate_all(*read(words)), lambda words: usage("drl-eval", Options, about, EXAMPLES))


def read(args: Sequence[str]) -> tuple[Options, dict[str, Any]]:
    """Split the command line into options and arguments of the environment. Raise UsageError."""
    own = [arg for arg in args if not arg.lstrip("+").startswith(KWARGS)]
    bare = [arg for arg in without_flags(own, ())[0] if "=" not in arg]
    options = parse(own, Options, positional="run" if len(bare) < 2 else "runs")
    if bare == [options.run] and is_folder_of_runs(options.run, options.output_dir):
        options = dataclasses.replace(options, run=Options.run, runs=(options.run,))
    if options.runs is not None and any(arg.startswith("run=") for arg in own):
        raise UsageError("run names one run, runs several: say one of them")
    return options, dict(map(environment_argument, (arg for arg in args if arg not in own)))


def environment_argument(arg: str) -> tuple[str, Any]:
    """Return name and value of `env.kwargs.X=...`. Raise UsageError if they can't be read."""
    name, _, text = arg.lstrip("+").removeprefix(KWARGS).partition("=")
    with suppress(yaml.YAMLError):  # the error below names the argument
        if name and text:
            value: Any = yaml.safe_load(text)
            with suppress(TypeError, ValueError):
                value = float(value) if isinstance(value, str) else value  # yaml reads 1e-3 as text, unlike Hydra
            return name, value
    raise UsageError(f"{arg}: say {KWARGS}NAME=value")


def evaluate_all(options: Options, kwargs: Mapping[str, Any]) -> int:
    """Evaluate every run, print the results, and write them. Raise UsageError with the problems of all failed runs."""
    steps: dict[Path, Path | None]
    if options.runs is None:
        steps = dict([find_saved_step(options.run, options.checkpoint, options.output_dir)])
    else:
        steps = dict.fromkeys(find_runs(options.runs, options.output_dir))
    results: dict[Path, dict[str, Any]] = {}
    errors: list[ReportedError] = []
    for folder, step in steps.items():
        try:
            asked = options if step is None else dataclasses.replace(options, checkpoint=step.name)
            results[folder] = evaluate(folder, asked, kwargs)
        except ReportedError as error:
            errors.append(error)
    if len(results) > 1:
        print("\n".join([results_table(results), *over_runs(results)]))
    for folder, result in results.items():
        if options.min_return is not None and result["mean"] < options.min_return:
            name = f"{folder.name}: " if len(steps) > 1 else ""
            line = f"{name}mean return {score_text(result['mean'])} is below min_return={options.min_return:g}"
            errors.append(UsageError(line, BELOW))
    if errors:
        raise UsageError([line for error in errors for line in error.problems], errors[0].exit_code)
    return DONE


def evaluate(folder: Path, options: Options, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate one run, print the result, and write it into the run's folder. Raise UsageError or CheckpointError."""
    checkpoint = find_step(folder, options.checkpoint)
    check_format(checkpoint)
    config = with_simulations(read_config(folder, options.trust), options.simulations)
    config = acting_config(config, folder, options.env)
    env = dataclasses.replace(config.env, kwargs={**config.env.kwargs, **kwargs})
    manage = dataclasses.replace(config.manage, env_kwargs={**config.manage.env_kwargs, **kwargs})
    config = dataclasses.replace(config, env=env, manage=manage)
    seeds = integers(config.seed, "confirm", options.episodes, index=options.seed)
    score, manifest = play(config, checkpoint, seeds, options.stochastic)
    low, high = interval([score.returns], np.mean)
    statistics = score.statistics()
    result = {
        "run": str(folder),
        "checkpoint": checkpoint.name,
        "opt_steps": manifest["opt_steps"],
        "stochastic": options.stochastic,
        **({} if options.env is None else {"env": config.env.name}),
        "env_kwargs": dict(kwargs),
        **({} if options.simulations is None else {"simulations": options.simulations}),
        "seeds": seeds,
        **statistics,
        "mean_interval_95": None if math.isnan(low) else [float(low), float(high)],
        "cut": score.cut,
        "info": score.info(),
        "returns": [float(value) for value in score.returns],
    }
    print("\n".join(result_lines(folder.name, result, statistics, config.manage.max_episode_steps)), flush=True)
    with as_usage_error(OSError, prefix=f"{folder}: the result can't be written: ", exit_code=RESOURCES):
        path = save_evaluation(folder, result)
    print(f"kept in {path.name}")
    return result


def save_evaluation(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write eval.json. Keep the old and the new result as eval-<checkpoint>-<n>.json. Return the new file's path."""
    from drl_cli.run_folder.checkpoint import write_json

    path = folder
    for each in filter(None, (read_json(folder / "eval.json"), result)):
        paths = (folder / f"eval-{each['checkpoint']}-{i}.json" for i in count(1))
        path = next(path for path in paths if not path.exists() or read_json(path) == each)
        if not path.exists():
            write_json(path, each)
    write_json(folder / "eval.json", result)
    return path


def play(config: Config, checkpoint: Path, seeds: list[int], stochastic: bool) -> "tuple[Score, dict[str, Any]]":
    """Play an episode per seed with the policy of a checkpoint. Return the score and the checkpoint's manifest.

    Raise CheckpointError if the checkpoint can't be read, UsageError if the environment or the algorithm raised.
    """
    from drl_cli.run_folder.checkpoint import load_model
    from drl_cli.runtime.roles.evaluator import Evaluator
    from drl_cli.runtime.roles.normalization import numpy_program

    params, manifest = load_model(checkpoint)
    spec = environment_spec(config, trains=False)
    try:
        program, _ = numpy_program(config, spec)  # as in the run, so that equal episodes have equal returns
        evaluator = Evaluator(config, spec, seeds, manifest["exploration"] if stochastic else None, program)
        prefix = f"{checkpoint}: does not fit the run's config: "
        with as_usage_error(ValueError, prefix=prefix, exit_code=CHECKPOINT):
            evaluator.policy.load(params)
        score = evaluator.evaluate(params)
    except UsageError:
        raise
    except Exception as error:
        culprit = raised_by(error, [module_path(config.algo.name)]) or config.env.id
        raise UsageError(f"{culprit} {raised(error)}", USER_CODE) from error
    evaluator.close()
    return score, manifest


def result_lines(name: str, result: Mapping[str, Any], statistics: Mapping[str, float], most: int) -> list[str]:
    """Return lines that describe the result of a run. `most` is the limit of steps per episode."""
    how = "stochastic" if result["stochastic"] else "greedy"
    how += f", simulations {result['simulations']}" if "simulations" in result else ""
    how += f", in {result['env']}" if "env" in result else ""
    texts = {key: f"{value}" if isinstance(value, int) else score_text(value) for key, value in statistics.items()}
    texts["mean"] = _mean_text(result)
    lines = [f"{name}  {result['checkpoint']}  ({result['opt_steps']:,} updates, {how})"]
    lines.append("  ".join(f"{key} {value}" for key, value in texts.items()))
    if result["info"]:
        lines.append("  ".join(f"{key} {value:.4g}" for key, value in result["info"].items()))
    if result["cut"]:
        lines.append(f"{result['cut']} episodes were cut at {most} steps")
    return lines


def _mean_text(result: Mapping[str, Any]) -> str:
    return between(result["mean"], *(result["mean_interval_95"] or (math.nan, math.nan)))


def results_table(results: Mapping[Path, Mapping[str, Any]]) -> str:
    """Return a table with a line per run."""
    names = ("std", "min", "median", "max", "length_mean")
    rows = []
    for folder, result in results.items():
        scores = [_mean_text(result), *(score_text(result[name]) for name in names)]
        rows.append([folder.name, result["checkpoint"], str(result["episodes"]), *scores])
    head = ("run", "checkpoint", "episodes", "mean [95%]", *names)
    return table(head, rows, sys.stdout, left=("run", "checkpoint"))


def over_runs(results: Mapping[Path, Mapping[str, Any]]) -> list[str]:
    """Return a line with the IQM for each group of runs that differ only in their seed."""
    lines = []
    for group in grouped(map(Run, results)):
        if (num := len(group.runs)) > 1:
            means = np.array([results[run.folder]["mean"] for run in group.runs])
            lines.append(f"{group.env} {group.label}: IQM over {num} runs {between(*estimate(means))}")
    return lines


if __name__ == "__main__":
    main()
