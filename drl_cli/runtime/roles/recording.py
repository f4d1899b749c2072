"""Recording: all that a run's reports, evaluations and videos are written to."""

import dataclasses
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from drl_cli.metrics.aside import Aside
from drl_cli.metrics.mlflow import Mlflow
from drl_cli.metrics.recorders import Csv, JsonLines, Recorder, RunInfo, Value, VideoRecorder
from drl_cli.metrics.tensorboard import TensorBoard
from drl_cli.metrics.wandb import Wandb
from drl_cli.runtime.config import Config
from drl_cli.utils.clock import now
from drl_cli.utils.outside import import_object

log = logging.getLogger(__name__)

CLOSE_S = 8.0  # less than the orchestrator waits for the end of manage
EVAL_COLUMNS = (
    *("env_steps", "opt_steps", "version", "wall_s"),
    *("mean", "std", "min", "max", "median", "episodes", "length_mean"),
)


class Recording:
    """The run's own files, which raise OSError when a disk is full, and recorders beside them, which raise nothing."""

    def __init__(self, config: Config, folder: Path) -> None:
        run = describe(config, folder)
        self.lines = JsonLines(folder / "metrics.jsonl")
        self.boards = [TensorBoard(run)] if config.logger.tensorboard else []
        self.scores = Csv(folder / "eval.csv", EVAL_COLUMNS)
        self.asides = make_asides(config, run)
        self._problems: list[str] = []

    def report(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write a report everywhere."""
        self._record(scalars, env_steps, [self.lines])

    def evaluation(self, row: Mapping[str, float], info: Mapping[str, float], cut: int) -> None:
        """Write an evaluation to eval.csv and, as `eval/...`, everywhere but to the reports.

        `row` is what EVAL_COLUMNS name, `info` what the environment says; where both have a name, it is the row's.
        """
        self.scores.write(row, info)
        ours = {f"eval/return_{name}": row[name] for name in ("mean", "std", "min", "max", "median")}
        ours |= {f"eval/{name}": row[name] for name in ("length_mean", "opt_steps", "version", "wall_s")}
        tags = {f"eval/{name}": value for name, value in info.items()} | ours | {"eval/episodes_cut": cut}
        self._record(tags, int(row["env_steps"]), [])

    def video(self, path: Path, env_steps: int) -> None:
        """Show a video wherever there is a place for one."""
        recorders: list[VideoRecorder] = [*self.asides, *self.boards]
        for recorder in recorders:
            recorder.video("eval/video", path, env_steps)

    def warn(self, problem: str) -> None:
        """Have this said to the user."""
        self._problems.append(problem)
        log.info("%s", problem)

    def take_problems(self) -> list[str]:
        """What is to be said to the user since the last call, a line each."""
        problems, self._problems = self._problems, []
        return problems + [problem for aside in self.asides if (problem := aside.take_problem())]

    def close(self, status: str) -> None:
        """Write what is left, and close all files; who writes aside has CLOSE_S seconds for it."""
        recorders: list[Recorder] = [*self.asides, self.lines, *self.boards]
        for recorder in recorders:
            recorder.close(status)
        self.scores.close()
        until = now() + CLOSE_S
        for aside in self.asides:
            aside.wait(until - now())

    def _record(self, scalars: Mapping[str, float], env_steps: int, more: list[Recorder]) -> None:
        """To the recorders aside first: what a full disk does to our files is not theirs to bear."""
        recorders: list[Recorder] = [*self.asides, *more, *self.boards]
        for recorder in recorders:
            recorder.record(scalars, env_steps)


def make_asides(config: Config, run: RunInfo) -> list[Aside]:
    """wandb, MLflow and the user's own, where the config names them."""
    logger, asides = config.logger, []
    if logger.wandb != "none":
        asides.append(Aside(f"logger.wandb={logger.wandb}", partial(Wandb, run, logger.wandb)))
    if logger.mlflow != "none":
        asides.append(Aside(f"logger.mlflow={logger.mlflow}", partial(Mlflow, run, logger.mlflow)))
    return asides + [Aside(path, partial(_make_own, path, run)) for path in logger.recorders]


def _make_own(path: str, run: RunInfo) -> Recorder:
    recorder: Recorder = import_object(path)(run)
    return recorder


def describe(config: Config, folder: Path) -> RunInfo:
    """What recorders are told of a run."""
    name = f"{config.env.name} {config.algo.name}-{config.mode} s{config.seed}"
    return RunInfo(folder.name, name, folder, config.logger.project, hyperparameters(config))


def hyperparameters(config: Config) -> dict[str, Value]:
    """The config as flat names."""
    flat: dict[str, Value] = {}

    def walk(prefix: str, node: Mapping[str, object]) -> None:
        for name, value in node.items():
            if isinstance(value, Mapping):
                walk(f"{prefix}{name}.", value)
            else:
                flat[prefix + name.rstrip("_")] = value if isinstance(value, bool | int | float) else str(value)

    walk("", dataclasses.asdict(config))
    return flat
