"""Records: writes reports, evaluations and videos to the run's files and to all recorders."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from drl_cli.config.config import Config
from drl_cli.metrics.recorders import (
    BackgroundRecorder,
    Csv,
    JsonLines,
    Mlflow,
    Recorder,
    RunInfo,
    Value,
    Wandb,
)
from drl_cli.metrics.tensorboard import TensorBoard
from drl_cli.run_folder.evaluations import EVAL_COLUMNS
from drl_cli.types import flatten
from drl_cli.utils.clock import now
from drl_cli.utils.hydra_grammar import typed_keys
from drl_cli.utils.outside import import_object

log = logging.getLogger(__name__)

CLOSE_S = 8.0
"""Maximum time [s] to close background recorders. The orchestrator waits slightly longer for manage."""
ALIASES: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "sb3": {
        "rollout/return_mean": "rollout/ep_rew_mean",
        "rollout/length_mean": "rollout/ep_len_mean",
        "eval/return_mean": "eval/mean_reward",
        "eval/length_mean": "eval/mean_ep_length",
        "perf/env_steps_per_s": "time/fps",
        "perf/opt_steps": "train/n_updates",
    },
    "cleanrl": {
        "rollout/return_mean": "charts/episodic_return",
        "rollout/length_mean": "charts/episodic_length",
        "eval/return_mean": "eval/episodic_return",
        "perf/env_steps_per_s": "charts/SPS",
    },
}
"""The names of the same scalars in Stable-Baselines3 and CleanRL, by `logger.aliases` and our name."""


class Records:
    """Writes to the run's files, which raise OSError on a full disk, and to background recorders, which never raise."""

    def __init__(self, config: Config, folder: Path) -> None:
        run, self.unit = describe(config, folder), config.clock.unit
        self.lines = JsonLines(folder / "metrics.jsonl", self.unit)
        self.boards = [TensorBoard(run)] if config.logger.tensorboard else []
        self.scores = Csv(folder / "eval.csv", EVAL_COLUMNS)
        self.background = make_background(config, run)
        self.aliases = ALIASES[config.logger.aliases]
        self._problems: list[str] = []

    def record(self, scalars: Mapping[str, float], position: int, *more: Recorder) -> None:
        """Send scalars to the background recorders first, because the run's files raise OSError on a full disk."""
        scalars = {**scalars, **{self.aliases[tag]: scalars[tag] for tag in self.aliases if tag in scalars}}
        recorders: list[Recorder] = [*self.background, *more, *self.boards]
        for recorder in recorders:
            recorder.record(scalars, position)

    def evaluation(self, row: Mapping[str, float], info: Mapping[str, float], cut: int) -> None:
        """Write an evaluation to eval.csv. Send the values as `eval/...` to all recorders except metrics.jsonl.

        `row` has the EVAL_COLUMNS, and `info` has the numbers of the environment. For a name in both, `row` is used.
        """
        self.scores.write(row, info)
        row_tags = {f"eval/return_{name}": row[name] for name in ("mean", "std", "min", "max", "median")}
        row_tags |= {f"eval/{name}": row[name] for name in ("length_mean", "opt_steps", "version", "wall_s")}
        tags = {f"eval/{name}": value for name, value in info.items()} | row_tags | {"eval/episodes_cut": cut}
        self.record(tags, int(row[self.unit]))

    def video(self, path: Path, position: int) -> None:
        takers: list[BackgroundRecorder | TensorBoard] = [*self.background, *self.boards]
        for recorder in takers:
            recorder.video("eval/video", path, position)

    def warn(self, problem: str) -> None:
        self._problems.append(problem)
        log.info("%s", problem)

    def take_problems(self) -> list[str]:
        """Return the problems since the last call, one line each."""
        problems, self._problems = self._problems, []
        return problems + [problem for recorder in self.background if (problem := recorder.take_problem())]

    def close(self, status: str) -> None:
        recorders: list[Recorder] = [*self.background, self.lines, *self.boards]
        for recorder in recorders:
            recorder.close(status)
        self.scores.close()
        until = now() + CLOSE_S
        for background in self.background:
            background.wait(until - now())


def make_background(config: Config, run: RunInfo) -> list[BackgroundRecorder]:
    """Create the recorders that the config names: wandb, MLflow and the user's own."""
    logger, recorders = config.logger, list[BackgroundRecorder]()
    if logger.wandb != "none":
        recorders.append(BackgroundRecorder(f"logger.wandb={logger.wandb}", partial(Wandb, run, logger.wandb)))
    if logger.mlflow != "none":
        recorders.append(BackgroundRecorder(f"logger.mlflow={logger.mlflow}", partial(Mlflow, run, logger.mlflow)))
    own = [BackgroundRecorder(path, partial(lambda each: import_object(each)(run), path)) for path in logger.recorders]
    return recorders + own


def describe(config: Config, folder: Path) -> RunInfo:
    """Return the RunInfo of a run, for its recorders."""
    name = f"{config.name or f'{config.env.name} {config.algo_name}-{config.mode}'} s{config.seed}"
    file, hparams = folder / "run.json", hyperparameters(config)
    typed = typed_keys(json.loads(file.read_bytes())["command"]) if file.exists() else ()  # a test's graph has no file
    return RunInfo(folder.name, name, folder, config.logger.project, hparams, config.clock.unit, typed)


def hyperparameters(config: Config) -> dict[str, Value]:
    """Return the config with dotted keys and plain values."""
    values = flatten(dataclasses.asdict(config)).items()
    return {key.rstrip("_"): value if isinstance(value, bool | int | float) else str(value) for key, value in values}
