"""Manage: its own process, which evaluates, records and keeps the model files."""

import errno
import logging
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from drl_cli.runtime.roles.camera import Camera
from drl_cli.runtime.roles.evaluator import Score, Scorer, make_evaluator
from drl_cli.runtime.roles.recording import Recording
from drl_cli.types import Array, EnvSpec, State
from drl_cli.utils.locks import lock
from drl_cli.utils.seeding import integers

log = logging.getLogger(__name__)

MANAGE_LOCK = ".manage.lock"
"""A file in the run's folder that is locked as long as such a process may write there."""


class Manage:
    """It evaluates in one thread and does all else in another, so that a report never waits for an evaluation.

    `started` is when the run began, in seconds since the epoch, time before it was resumed included.
    """

    def __init__(self, config: Config, spec: EnvSpec, folder: Path, started: float) -> None:
        self.config, self.spec, self.folder, self.started = config, spec, folder, started
        self.checkpoints = folder / "checkpoints"
        self.recording = Recording(config, folder)
        self.evaluators: list[Scorer] = []
        self.camera: Camera | None = None
        self.until_film = config.manage.video_period and 1
        self.lock = threading.Lock()
        self.claim = lock(folder / MANAGE_LOCK, shared=True)
        self.best = float("-inf")
        if (self.checkpoints / "best").exists():
            self.best = float(read_manifest(self.checkpoints / "best")["mean"])

    def report(self, scalars: Mapping[str, float], env_steps: int) -> list[str]:
        """Write one report of the orchestrator; returns what went wrong since the last, a line each."""
        with self.lock:
            self.recording.report(scalars, env_steps)
            return self.recording.take_problems()

    def evaluate(self, params_header: LoadParams, params: Array) -> EvalReport:
        """Score this version, write it down at its env steps, and save it if it is the best so far."""
        score = self._score(params)
        statistics, info = score.statistics(), score.info()
        wall_s = time.time() - self.started
        row = {
            **{name: getattr(params_header, name) for name in ("env_steps", "opt_steps", "version")},
            "wall_s": round(wall_s, 3),
            **statistics,
        }
        is_best, problem = statistics["mean"] > self.best, None
        with self.lock:
            try:
                self.recording.evaluation(row, info, score.cut)
                if is_best:
                    self._save_best(params_header, params, {**statistics, "wall_s": wall_s, "cut": score.cut})
            except OSError as error:
                problem = f"{type(error).__name__}: {error}"
        self._film(params_header, params)
        return EvalReport(params_header, wall_s, statistics, score.cut, is_best, problem, info)

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

    def close(self, status: str) -> list[str]:
        """Close the files and environments; nothing is recorded after this. Returns what went wrong, as a report."""
        with self.lock:
            self.recording.close(status)
            problems = self.recording.take_problems()
        for evaluator in self.evaluators:
            evaluator.close()
        if self.camera is not None:
            self.camera.close()
        self.claim.close()  # a program that trains goes on, and may resume this run
        return problems

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
            self.evaluators.append(make_evaluator(self.config, self.spec, seeds[first : first + manage.eval_episodes]))
        return self.evaluators[part].evaluate(params)

    def _film(self, params_header: LoadParams, params: Array) -> None:
        """Film a greedy episode when it is its turn; where that fails, none is tried again."""
        self.until_film -= 1
        if self.until_film != 0:
            return
        self.until_film = self.config.manage.video_period
        try:
            if self.camera is None:
                (seed,) = integers(self.config.seed, "evaluate", 1)
                self.camera = Camera(self.config, self.spec, seed, self.folder / "videos")
            path = self.camera.film(params, params_header.env_steps)
            with self.lock:
                self.recording.video(path, params_header.env_steps)
        except Exception as error:
            self.until_film = 0
            log.info("no video", exc_info=True)
            with self.lock:
                text = " ".join(str(error).split())
                self.recording.warn(f"manage.video_period: no video is made: {type(error).__name__}: {text}")

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
