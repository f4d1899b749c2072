"""Manage: the process that evaluates policies, records results, and writes models and checkpoints."""

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from drl_cli.data.dataset import SCORE, normalised
from drl_cli.errors import CheckpointError
from drl_cli.metrics.background import one_line
from drl_cli.runtime.config import Config
from drl_cli.runtime.files import checkpoint, retention
from drl_cli.runtime.messages import Draft, EvalReport, LoadParams, ProcessUse
from drl_cli.runtime.place.usage import OwnUse
from drl_cli.runtime.roles.evaluator import Camera, Score, Scorer, make_evaluator
from drl_cli.runtime.roles.recording import Recording
from drl_cli.types import Array, EnvSpec, State
from drl_cli.utils.files import lock, remove_folder, reserve, write_or_make_room
from drl_cli.utils.seeding import integers

log = logging.getLogger(__name__)

MANAGE_LOCK = ".manage.lock"
"""A lock file in the run's folder. A running manage process holds this lock."""
MANIFEST_BYTES = 2**16
"""The room that a checkpoint needs besides its arrays."""


class Manage:
    """Evaluates in one thread and does everything else in another thread, so that reports do not wait for evaluations.

    `started` is the start of the run [s since the epoch]. After a resume, `started` is earlier by the duration of the
    run before the resume.
    """

    def __init__(self, config: Config, spec: EnvSpec, folder: Path, started: float) -> None:
        self.config, self.spec, self.folder, self.started = config, spec, folder, started
        self.clock = config.clock
        self.checkpoints = folder / "checkpoints"
        self.reserve = folder / ".reserve"  # keeps room on the disk for the final weights
        self.recording = Recording(config, folder)
        self.evaluators: list[Scorer] = []
        self.camera: Camera | None = None
        self.until_film = config.manage.video_period and 1
        self.lock = threading.Lock()
        self.claim = lock(folder / MANAGE_LOCK, shared=True)
        self.use = OwnUse()
        self.best = float("-inf")
        if (self.checkpoints / "best").exists():
            self.best = float(checkpoint.read_manifest(self.checkpoints / "best")["mean"])

    def report(self, scalars: Mapping[str, float], position: int) -> list[str]:
        """Write a report at a position of the run's clock. Return the problems since the last report, one line each."""
        with self.lock:
            self.recording.record(scalars, position, self.recording.lines)
            return self.recording.take_problems()

    def used(self) -> tuple[ProcessUse, ...]:
        return self.use.take()

    def evaluate(self, params_header: LoadParams, params: Array) -> EvalReport:
        """Evaluate a version, record the score, and save the version if its score is the best so far."""
        score = self._score(params)
        statistics, info = score.statistics(), score.info()
        wall_s = time.time() - self.started
        if reference := self.config.data.reference:
            statistics[SCORE] = info[SCORE] = normalised(statistics["mean"], reference)
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

    def commit(self, draft: Draft, params: Array, *states: State) -> str | OSError:
        """Add the parameters and the states of `draft.roles`, and make it the last checkpoint. Return its new path.

        If the disk fails, return an OSError instead of raising it. The previous checkpoint then remains the last one.
        """
        files = dict(draft.sums)

        def drop_replay() -> None:
            for name in draft.sums:
                files.pop(name)
                (Path(draft.path) / name).unlink()

        with self.lock:
            try:
                write = partial(self._commit, draft, params, states, files)
                folder = write_or_make_room(write, *self._drop_older(), drop_replay, self._drop_reserve)
                retention.settle(self.checkpoints, self.config.checkpoint.keep_last)
            except OSError as error:
                shutil.rmtree(draft.path, ignore_errors=True)
                return error
            finally:
                reserve(self.reserve, params.nbytes + MANIFEST_BYTES)
        return str(folder)

    def _commit(self, draft: Draft, params: Array, states: Sequence[State], files: dict[str, str]) -> Path:
        """Write the states and turn the draft into the last checkpoint. `files` has the sha256 of the draft's files."""
        path, version = Path(draft.path), draft.params_header.version
        needed = params.nbytes + sum(array.nbytes for state in states for array in state.values()) + 2**20
        if (free := shutil.disk_usage(path).free) < needed:
            problem = f"{needed / 2**20:.0f} MB are needed, {free / 2**20:.0f} MB are free"
            raise OSError(errno.ENOSPC, problem, str(path))
        for role, state in zip(draft.roles, states, strict=True):
            name = f"state.{role.replace(' ', '-')}.safetensors"
            files[name] = checkpoint.write_arrays(path / name, state)
        files[checkpoint.COUNTERS] = checkpoint.write_json(path / checkpoint.COUNTERS, draft.counters)
        folder = checkpoint.free_folder(self.checkpoints, draft.counters["counts"][self.clock.unit], version)
        return checkpoint.finish(path, folder, draft.params_header, params, files, {}, name="last")

    def save(self, params_header: LoadParams, params: Array) -> str | OSError:
        """Save only the model; return its folder, or the error if the disk fails even after everything that can go."""
        last = self.checkpoints / "last"
        with self.lock:
            folder = checkpoint.free_folder(self.checkpoints, self.clock.of(params_header), params_header.version)
            self._drop_reserve()
            write = partial(checkpoint.save_model, folder, params_header, params, {})
            try:
                return str(write_or_make_room(write, *self._drop_older(), lambda: checkpoint.drop_replay(last)))
            except (OSError, CheckpointError) as error:
                return error if isinstance(error, OSError) else OSError(errno.ENOSPC, str(error))

    def _drop_reserve(self) -> None:
        self.reserve.unlink(missing_ok=True)

    def _drop_older(self) -> list[Callable[[], None]]:
        """Return functions that free disk space, to call in this order: each removes the oldest checkpoint left."""
        return [partial(remove_folder, path) for path in retention.replaced(self.checkpoints)]

    def close(self, status: str) -> list[str]:
        with self.lock:
            self.recording.close(status)
            problems = self.recording.take_problems()
            self._drop_reserve()
        for evaluator in self.evaluators:
            evaluator.close()
        if self.camera is not None:
            self.camera.close()
        self.claim.close()  # releases the lock, because the same program may resume this run later
        return problems

    def _score(self, params: Array) -> Score:
        """Play eval_episodes episodes. If the mean reaches stop.return, confirm it with up to confirm_episodes more.

        The best of many evaluations is often lucky, and a few episodes rarely show the failures of a policy. Therefore
        half of confirm_episodes are always played, all at the same time. The other half follows if the mean of all
        episodes is then above stop.return by less than two standard errors.
        """
        goal = self.config.stop.return_
        score = self._play(0, params)
        if goal is None or score.returns.mean() < goal:
            return score
        for part in range(1, 1 + min(2, self.config.manage.confirm_episodes)):
            score += self._play(part, params)
            if not 0 <= score.returns.mean() - goal < 2 * score.standard_error():
                break
        return score

    def _play(self, part: int, params: Array) -> Score:
        """Return the score of eval_episodes (part 0) or of half of confirm_episodes (parts 1 and 2), on fixed seeds."""
        manage = self.config.manage
        if part == len(self.evaluators):
            seeds = integers(self.config.seed, "evaluate", manage.eval_episodes + manage.confirm_episodes)
            ends = 0, manage.eval_episodes, len(seeds) - manage.confirm_episodes // 2, len(seeds)
            self.evaluators.append(make_evaluator(self.config, self.spec, seeds[ends[part] : ends[part + 1]]))
        return self.evaluators[part].evaluate(params)

    def _film(self, params_header: LoadParams, params: Array) -> None:
        """Film a greedy episode if a video is due. After a failure, make no more videos."""
        self.until_film -= 1
        if self.until_film != 0:
            return
        self.until_film = self.config.manage.video_period
        try:
            if self.camera is None:
                (seed,) = integers(self.config.seed, "evaluate", 1)
                self.camera = Camera(self.config, self.spec, seed, self.folder / "videos")
            path = self.camera.film(params, self.clock.of(params_header))
            with self.lock:
                self.recording.video(path, self.clock.of(params_header))
        except Exception as error:
            self.until_film = 0
            log.info("no video", exc_info=True)
            with self.lock:
                self.recording.warn(f"manage.video_period: no video is made: {one_line(error)}")

    def _save_best(self, params_header: LoadParams, params: Array, statistics: Mapping[str, float]) -> None:
        folder = checkpoint.free_folder(self.checkpoints, self.clock.of(params_header), params_header.version, "-best")
        write = partial(checkpoint.save_model, folder, params_header, params, statistics, name="best")
        write_or_make_room(write, *self._drop_older())
        retention.settle_best(self.checkpoints)
        self.best = statistics["mean"]
