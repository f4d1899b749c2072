"""drl-eval: greedy evaluation of a run's saved policy on fresh episode seeds; table and eval.json."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from drl_cli.algos.lookup import module_path
from drl_cli.cli.errors import BELOW, CHECKPOINT, USER_CODE, UsageError, fail
from drl_cli.cli.options import parse, usage
from drl_cli.cli.preflight import environment_spec
from drl_cli.cli.runs import check_format, find_run, read_config
from drl_cli.runtime.config import Config
from drl_cli.utils.outside import raised_by
from drl_cli.utils.ranges import Count, Natural
from drl_cli.utils.seeding import integers


@dataclass(frozen=True)
class Options:
    """Options of drl-eval."""

    run: str = field(default="latest", metadata={"help": "a path, latest, a glob or the start of a run id"})
    episodes: Count = field(default=20, metadata={"help": "episodes, each with its own seed, all at once"})
    checkpoint: str = field(default="best", metadata={"help": "best, last or a step folder's name"})
    seed: Natural = field(default=0, metadata={"help": "another seed, other episodes; none is one of training's"})
    min_return: float | None = field(default=None, metadata={"help": "exit 9 when the mean is below it"})
    output_dir: str = field(default="outputs", metadata={"help": "where the runs are"})


def main() -> None:
    """The command."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(usage("drl-eval", Options, "evaluate a run's saved policy greedily on fresh episode seeds"))
        return
    sys.path.insert(0, "")
    try:
        options = parse(sys.argv[1:], Options, positional="run")
        mean = evaluate(options)
    except UsageError as error:
        fail(error)
    if options.min_return is not None and mean < options.min_return:
        fail(UsageError(f"mean return {mean:.1f} is below min_return={options.min_return:g}", BELOW))


def evaluate(options: Options) -> float:
    """Evaluate, print and write eval.json; returns the mean return."""
    folder = find_run(options.run, options.output_dir)
    checkpoint = folder / "checkpoints" / options.checkpoint
    check_format(checkpoint)
    config = read_config(folder)
    from drl_cli.runtime.errors import CheckpointError
    from drl_cli.runtime.files.checkpoint import load_model, write_json
    from drl_cli.runtime.roles.evaluator import Evaluator

    try:
        params, manifest = load_model(checkpoint)
    except CheckpointError as error:
        raise UsageError(str(error), CHECKPOINT) from error
    seeds = integers(config.seed, "confirm", options.episodes, index=options.seed)
    spec = environment_spec(config, trains=False)
    try:
        evaluator = Evaluator(config, spec, seeds)
    except Exception as error:
        raise UsageError(_blame(config, error), USER_CODE) from error
    try:
        evaluator.policy.load(params)
    except ValueError as error:
        raise UsageError(f"{checkpoint}: does not fit the run's config: {error}", CHECKPOINT) from error
    try:
        score = evaluator.evaluate(params)
    except Exception as error:
        raise UsageError(_blame(config, error), USER_CODE) from error
    evaluator.close()
    statistics = score.statistics()
    print(f"{folder.name}  {checkpoint.resolve().name}  ({manifest['opt_steps']} updates)")
    print("  ".join(f"{name} {value:.1f}" for name, value in statistics.items()))
    if score.cut:
        print(f"{score.cut} episodes were cut at {config.manage.max_episode_steps} steps")
    result = {
        "run": str(folder),
        "checkpoint": Path(checkpoint).resolve().name,
        "seeds": seeds,
        **statistics,
        "returns": [float(value) for value in score.returns],
    }
    write_json(folder / "eval.json", result)
    return statistics["mean"]


def _blame(config: Config, error: Exception) -> str:
    """Who raised: the algorithm's module, or else the environment."""
    culprit = raised_by(error, [module_path(config.algo.name)]) or config.env.id
    return f"{culprit} raised {type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
