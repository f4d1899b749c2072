"""Manage: its own process, which evaluates, records and keeps the model files."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drl_cli.metrics.recorders import Csv, JsonLines, Recorder, TensorBoard, Value
from drl_cli.runtime.checkpoint import point, prune, read_manifest, save_model
from drl_cli.runtime.config import Config
from drl_cli.runtime.evaluator import Evaluator, Score
from drl_cli.runtime.messages import LoadParams
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.seeding import integers

EVAL_COLUMNS = (
    *("env_steps", "opt_steps", "version", "wall_s"),
    *("mean", "std", "min", "max", "median", "episodes", "length_mean"),
)


@dataclass(frozen=True)
class EvalReport:
    """One evaluation: what was evaluated, when it ended (process seconds), how it scored."""

    load: LoadParams
    wall_s: float
    statistics: Mapping[str, float]
    cut: int
    is_best: bool

    @property
    def mean(self) -> float:
        return self.statistics["mean"]


class Manage:
    """`report` and `evaluate` may run at the same time, in two threads."""

    def __init__(self, config: Config, spec: EnvSpec, folder: Path, started: float) -> None:
        self.config, self.spec, self.folder, self.started = config, spec, folder, started
        self.checkpoints = folder / "checkpoints"
        self.recorders: list[Recorder] = [JsonLines(folder / "metrics.jsonl")]
        if config.logger.tensorboard:
            self.recorders.append(TensorBoard(folder, hyperparameters(config)))
        self.scores = Csv(folder / "eval.csv", EVAL_COLUMNS)
        self.evaluators: list[Evaluator] = []
        self.lock = threading.Lock()
        self.best = float("-inf")
        if (self.checkpoints / "best").exists():
            self.best = float(read_manifest(self.checkpoints / "best")["mean"])

    def report(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write one report of the orchestrator."""
        with self.lock:
            for recorder in self.recorders:
                recorder.record(scalars, env_steps)

    def evaluate(self, load: LoadParams, params: Array) -> EvalReport:
        """Score this version, write it down at its env steps, and save it if it is the best so far."""
        score = self._score(params)
        statistics = score.statistics()
        wall_s = time.time() - self.started
        row = {**dataclasses.asdict(load), "wall_s": round(wall_s, 3), **statistics}
        tags = {f"eval/return_{name}": statistics[name] for name in ("mean", "std", "min", "max", "median")}
        tags |= {"eval/length_mean": statistics["length_mean"], "eval/episodes_cut": score.cut}
        tags |= {"eval/opt_steps": load.opt_steps, "eval/version": load.version, "eval/wall_s": wall_s}
        is_best = statistics["mean"] > self.best
        with self.lock:
            self.scores.write(row)
            for recorder in self.recorders[1:]:
                recorder.record(tags, load.env_steps)
            if is_best:
                self.best = statistics["mean"]
                point(self.checkpoints, "best", self._save(load, params, statistics))
        return EvalReport(load, wall_s, statistics, score.cut, is_best)

    def save(self, load: LoadParams, params: Array) -> str:
        """Save this version as the last one; returns its folder."""
        with self.lock:
            folder = self._save(load, params, {})
            point(self.checkpoints, "last", folder)
            prune(self.checkpoints, self.config.checkpoint.keep_last)
        return str(folder)

    def close(self, status: str) -> None:
        """Write what is left."""
        with self.lock:
            for recorder in self.recorders:
                recorder.close(status)
            self.scores.close()
        for evaluator in self.evaluators:
            evaluator.close()

    def _score(self, params: Array) -> Score:
        """The score over eval_episodes; one that reaches stop.return is extended by confirm_episodes others.

        Among many evaluations the best is a lucky one; the extension tells a good policy from a lucky twenty.
        """
        manage, goal = self.config.manage, self.config.stop.return_
        if not self.evaluators:
            seeds = integers(self.config.seed, "evaluate", manage.eval_episodes + manage.confirm_episodes)
            first, more = seeds[: manage.eval_episodes], seeds[manage.eval_episodes :]
            self.evaluators = [Evaluator(self.config, self.spec, part) for part in (first, more) if part]
        score = self.evaluators[0].evaluate(params)
        if goal is not None and score.returns.mean() >= goal:
            for evaluator in self.evaluators[1:]:
                score += evaluator.evaluate(params)
        return score

    def _save(self, load: LoadParams, params: Array, statistics: Mapping[str, float]) -> Path:
        """Write a version unless it is there already; two versions at one env step get two folders."""
        folder = self.checkpoints / f"step_{load.env_steps:09d}"
        if folder.exists() and read_manifest(folder)["version"] != load.version:
            folder = folder.with_name(f"{folder.name}-v{load.version}")
        if folder.exists() and not statistics:
            return folder
        return save_model(folder, load, params, statistics)


def hyperparameters(config: Config) -> dict[str, Value]:
    """The config as flat names, for TensorBoard's hparams tab."""
    flat: dict[str, Value] = {}

    def walk(prefix: str, node: Mapping[str, object]) -> None:
        for name, value in node.items():
            if isinstance(value, Mapping):
                walk(f"{prefix}{name}.", value)
            else:
                flat[prefix + name.rstrip("_")] = value if isinstance(value, bool | int | float) else str(value)

    walk("", dataclasses.asdict(config))
    return flat
