"""Manage: its own process, which evaluates, records and keeps the model files."""

import dataclasses
import errno
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drl_cli.metrics.recorders import Csv, JsonLines, Recorder, TensorBoard, Value
from drl_cli.runtime.config import Config
from drl_cli.runtime.files.checkpoint import (
    COUNTERS,
    finish,
    free_folder,
    point,
    prune,
    read_manifest,
    save_model,
    write_arrays,
    write_json,
)
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.roles.evaluator import Evaluator, Score
from drl_cli.types import Array, EnvSpec, State
from drl_cli.utils.locks import lock
from drl_cli.utils.seeding import integers

MANAGE_LOCK = ".manage.lock"
"""A file in the run's folder that is locked as long as such a process may write there."""
EVAL_COLUMNS = (
    *("env_steps", "opt_steps", "version", "wall_s"),
    *("mean", "std", "min", "max", "median", "episodes", "length_mean"),
)


class Manage:
    """It evaluates in one thread and does all else in another, so that a report never waits for an evaluation.

    `started` is when the run began, in seconds since the epoch, time before it was resumed included.
    """

    def __init__(self, config: Config, spec: EnvSpec, folder: Path, started: float) -> None:
        self.config, self.spec, self.folder, self.started = config, spec, folder, started
        self.checkpoints = folder / "checkpoints"
        self.recorders: list[Recorder] = [JsonLines(folder / "metrics.jsonl")]
        if config.logger.tensorboard:
            self.recorders.append(TensorBoard(folder, hyperparameters(config)))
        self.scores = Csv(folder / "eval.csv", EVAL_COLUMNS)
        self.evaluators: list[Evaluator] = []
        self.lock = threading.Lock()
        self.claim = lock(folder / MANAGE_LOCK, shared=True)
        self.best = float("-inf")
        if (self.checkpoints / "best").exists():
            self.best = float(read_manifest(self.checkpoints / "best")["mean"])

    def report(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write one report of the orchestrator."""
        with self.lock:
            for recorder in self.recorders:
                recorder.record(scalars, env_steps)

    def evaluate(self, params_header: LoadParams, params: Array) -> EvalReport:
        """Score this version, write it down at its env steps, and save it if it is the best so far."""
        score = self._score(params)
        statistics = score.statistics()
        wall_s = time.time() - self.started
        row = {**dataclasses.asdict(params_header), "wall_s": round(wall_s, 3), **statistics}
        tags = {f"eval/return_{name}": statistics[name] for name in ("mean", "std", "min", "max", "median")}
        tags |= {"eval/length_mean": statistics["length_mean"], "eval/episodes_cut": score.cut}
        tags |= {
            "eval/opt_steps": params_header.opt_steps,
            "eval/version": params_header.version,
            "eval/wall_s": wall_s,
        }
        is_best, problem = statistics["mean"] > self.best, None
        with self.lock:
            try:
                self.scores.write(row)
                for recorder in self.recorders[1:]:
                    recorder.record(tags, params_header.env_steps)
                if is_best:
                    self._save_best(params_header, params, {**statistics, "wall_s": wall_s, "cut": score.cut})
            except OSError as error:
                problem = f"{type(error).__name__}: {error}"
        return EvalReport(params_header, wall_s, statistics, score.cut, is_best, problem)

    def commit(
        self,
        draft: str,
        params_header: LoadParams,
        params: Array,
        counters: Mapping[str, Any],
        sums: Mapping[str, str],
        roles: Sequence[str],
        *states: State,
    ) -> str | OSError:
        """Complete a draft with the states of these roles and make it the last checkpoint.

        `sums` are those of the files that are in it already. Returns the checkpoint's folder, or what the disk did not
        let happen: the checkpoint before is then still the last one.
        """
        with self.lock:
            try:
                folder = self._commit(
                    Path(draft), params_header, params, counters, dict(sums), dict(zip(roles, states, strict=True))
                )
                point(self.checkpoints, "last", folder)
                prune(self.checkpoints, self.config.checkpoint.keep_last)
            except OSError as error:
                shutil.rmtree(draft, ignore_errors=True)
                return error
        return str(folder)

    def save(self, params_header: LoadParams, params: Array) -> str:
        """Save this version's model alone, from which a run can't be resumed; returns its folder."""
        with self.lock:
            folder = free_folder(self.checkpoints, params_header.env_steps, params_header.version)
            return str(save_model(folder, params_header, params, {}))

    def close(self, status: str) -> None:
        """Close the files and environments; nothing is recorded after this."""
        with self.lock:
            for recorder in self.recorders:
                recorder.close(status)
            self.scores.close()
        for evaluator in self.evaluators:
            evaluator.close()

    def _score(self, params: Array) -> Score:
        """The score over eval_episodes; one that reaches stop.return is extended by up to confirm_episodes others.

        Among many evaluations the best is a lucky one; the extension tells a good policy from a lucky twenty. It goes
        on, eval_episodes at a time, until the mean of all is below stop.return, or above it by two standard errors.
        """
        goal = self.config.stop.return_
        score = self._play(0, params)
        if goal is None or score.returns.mean() < goal:
            return score
        for part in range(1, 1 + -(-self.config.manage.confirm_episodes // self.config.manage.eval_episodes)):
            score += self._play(part, params)
            if not 0 <= score.returns.mean() - goal < 2 * score.standard_error():
                break
        return score

    def _play(self, part: int, params: Array) -> Score:
        """The score over one part of the episodes that an evaluation may take; equal parts have equal seeds."""
        manage = self.config.manage
        if part == len(self.evaluators):
            seeds = integers(self.config.seed, "evaluate", manage.eval_episodes + manage.confirm_episodes)
            first = part * manage.eval_episodes
            self.evaluators.append(Evaluator(self.config, self.spec, seeds[first : first + manage.eval_episodes]))
        return self.evaluators[part].evaluate(params)

    def _save_best(self, params_header: LoadParams, params: Array, statistics: Mapping[str, float]) -> None:
        folder = free_folder(self.checkpoints, params_header.env_steps, params_header.version, "-best")
        point(self.checkpoints, "best", save_model(folder, params_header, params, statistics))
        prune(self.checkpoints, self.config.checkpoint.keep_last)
        self.best = statistics["mean"]

    def _commit(
        self,
        draft: Path,
        params_header: LoadParams,
        params: Array,
        counters: Mapping[str, Any],
        sums: dict[str, str],
        states: Mapping[str, State],
    ) -> Path:
        needed = params.nbytes + sum(array.nbytes for state in states.values() for array in state.values()) + 2**20
        if (free := shutil.disk_usage(draft).free) < needed:
            raise OSError(
                errno.ENOSPC, f"{needed / 2**20:.0f} MB are needed, {free / 2**20:.0f} MB are free", str(draft)
            )
        for role, state in states.items():
            name = f"state.{role.replace(' ', '-')}.safetensors"
            sums[name] = write_arrays(draft / name, state)
        sums[COUNTERS] = write_json(draft / COUNTERS, counters)
        folder = free_folder(self.checkpoints, counters["counts"]["env_steps"], params_header.version)
        return finish(draft, folder, params_header, params, sums, {})


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
