"""Manage: the process that evaluates policies, records results, and writes models and checkpoints."""

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from drl_cli.config.config import Config
from drl_cli.convert.program import Program
from drl_cli.data.dataset import SCORE, normalised
from drl_cli.metrics.recorders import one_line
from drl_cli.run_folder import MANAGE_LOCK
from drl_cli.run_folder.checkpoint_writer import CheckpointWriter, Draft
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.roles.evaluator import Camera, Score, Scorer, make_evaluator
from drl_cli.runtime.roles.records import Records
from drl_cli.types import Array, EnvSpec, LoadParams, State
from drl_cli.utils.files import lock
from drl_cli.utils.seeding import integers

log = logging.getLogger(__name__)


class Manage:
    """Evaluates in one thread and does everything else in another thread, so that reports do not wait for evaluations.

    `started` is the start of the run [s since the epoch]. After a resume, `started` is earlier by the duration of the
    run before the resume.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, folder: Path, started: float, program: Program | None = None
    ) -> None:
        self.config, self.spec, self.folder, self.started, self.program = config, spec, folder, started, program
        self.clock = config.clock
        self.writer = CheckpointWriter(config, folder)
        self.records = Records(config, folder)
        self.evaluators: list[Scorer] = []
        self.camera: Camera | None = None
        self.until_film = config.manage.video_period and 1
        self.lock = threading.Lock()
        self.claim = lock(folder / MANAGE_LOCK, shared=True)

    def report(self, scalars: Mapping[str, float], position: int) -> list[str]:
        """Write a report at a position of the run's clock. Return the problems since the last report, a line each."""
        with self.lock:
            self.records.record(scalars, position, self.records.lines)
            return self.records.take_problems()

    def evaluate(self, params_header: LoadParams, params: Array) -> EvalReport:
        """Evaluate a version, record the score, and save the version if its score is the best so far."""
        score = self.score(params)
        statistics, info = score.statistics(), score.info()
        wall_s = time.time() - self.started
        if reference := self.config.data.reference_returns:
            statistics[SCORE] = info[SCORE] = normalised(statistics["mean"], reference)
        row = {
            **{name: getattr(params_header, name) for name in ("env_steps", "opt_steps", "version")},
            "wall_s": round(wall_s, 3),
            **statistics,
        }
        is_best, problem = statistics["mean"] > self.writer.best, None
        with self.lock:
            try:
                self.records.evaluation(row, info, score.cut)
                if is_best:
                    self.writer.save_best(params_header, params, {**statistics, "wall_s": wall_s, "cut": score.cut})
            except OSError as error:
                problem = f"{type(error).__name__}: {error}"
        self._film(params_header, params)
        return EvalReport(params_header, wall_s, statistics, score.cut, is_best, problem, info)

    def commit(self, draft: Draft, params: Array, *states: State) -> str | OSError:
        return self.writer.commit(draft, params, *states)

    def save(self, params_header: LoadParams, params: Array) -> str | OSError:
        return self.writer.save(params_header, params)

    def close(self, status: str) -> list[str]:
        with self.lock:
            self.records.close(status)
            problems = self.records.take_problems()
        self.writer.close(status)
        for evaluator in self.evaluators:
            evaluator.close()
        if self.camera is not None:
            self.camera.close()
        self.claim.close()  # releases the lock, because the same program may resume this run later
        return problems

    def score(self, params: Array) -> Score:
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
            self.evaluators.append(
                make_evaluator(self.config, self.spec, seeds[ends[part] : ends[part + 1]], self.program)
            )
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
                self.camera = Camera(self.config, self.spec, seed, self.folder / "videos", self.program)
            path = self.camera.film(params, self.clock.of(params_header))
            with self.lock:
                self.records.video(path, self.clock.of(params_header))
        except Exception as error:
            self.until_film = 0
            log.info("no video", exc_info=True)
            with self.lock:
                self.records.warn(f"manage.video_period: no video is made: {one_line(error)}")
