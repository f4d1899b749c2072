"""Orchestrator: starts, paces and stops all roles. The main loop handles only headers and references to arrays."""

import logging
import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drl_cli.chains.process_group import PeerLost
from drl_cli.config.config import Config
from drl_cli.errors import NotSaved, RoleLost, RunError
from drl_cli.metrics.console import Console
from drl_cli.runtime.edges.calls import LOOK_S, Calls
from drl_cli.runtime.interfaces import CollectRole, TrainerRole
from drl_cli.runtime.orchestrator.admission import Admission, steps_without_params
from drl_cli.runtime.orchestrator.collector import Collector
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.learning import Learning
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter
from drl_cli.runtime.orchestrator.reanalysis import Reanalysis
from drl_cli.runtime.orchestrator.reports import Reports
from drl_cli.runtime.orchestrator.saver import Saver, worker_layout
from drl_cli.runtime.place.handles import ObjectLost, Ref, get
from drl_cli.types import Array, LoadParams
from drl_cli.utils.clock import now
from drl_cli.utils.run_clock import multiple_after

log = logging.getLogger(__name__)

UPDATES_S = 3.0  # maximum time [s] after a signal at which a due update may still start
RESCUE_S = 15.0  # maximum time [s] to save the last checkpoint after a failure
CLOSE_S = 10.0  # maximum time [s] for manage to write its last records


class Orchestrator:
    """Makes every call and handles every answer.

    `health` returns what is wrong with Ray, or None. `look` has workers of new nodes join.
    """

    def __init__(
        self,
        config: Config,
        edges: Edges,
        limiter: Limiter,
        progress: Progress,
        console: Console,
        folder: Path,
        health: Callable[[], str | None] = lambda: None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.config, self.limiter, self.progress = config, limiter, progress
        self.health, self.look = health, look
        self.pool, self.replay, self.trainers, self.manage = edges.pool, edges.replay, edges.trainers, edges.manage
        self.calls = Calls(config.orchestrator.stall_s)
        self.collector = Collector(config, edges, limiter, progress, self.calls)
        self.reanalysis = Reanalysis(config, edges, limiter, progress, self.calls)
        self.reports = Reports(config, edges, progress, console, self.reanalysis)
        self.learning = Learning(config, edges, limiter, progress, self.calls, self.reports.published)
        self.admission = Admission(config, limiter, progress, self.collector, self.learning, self.reanalysis)
        self.patient: ChainMap[Any, Any] = ChainMap(self.pool.busy, self.reanalysis.pool.busy)  # see `Calls.react`
        self.saver = Saver(config, edges, self.calls, folder / "checkpoints")
        self.stop_reason: str | None = None
        self.paused = self.interrupted = False
        self.deadline: float | None = None
        self.training_ends = math.inf  # no train call starts after this time
        self.trainer_facts: Mapping[str, Any] | None = None  # for run.json; set in finish()

    def run(self) -> None:
        """Train until a stop condition is met. `stop_reason` then names the condition."""
        self.learning.connect()
        if self.learning.params is None:
            self.learning.publish()
            self.calls.react((), 0.0, patient=())  # handle version 0 if a local trainer has published it already
        else:  # a resumed run: every role restores its part of the checkpoint first
            self._until(lambda: not self.calls.pending)
        self._until(lambda: self.learning.params is not None or steps_without_params(self.config) > 0)
        steps = {"async": self.step_async, "offline": self.step_offline}
        step = steps.get(self.config.mode, self.step_sync)
        while not self.is_done():
            if self.paused:
                if self.collector.is_due():
                    self.collector.insert_arrived()
                self.idle()
            else:
                step()
        if self.stop_reason == self.config.clock.key:
            self._until(lambda: not self.calls.pending)
        self.pool.end(self.progress.end())

    def step_sync(self) -> None:
        """Let all workers collect with version k, make the updates that are due, and publish version k + 1.

        If a signal prevented updates before this run was resumed, they are made before the workers collect again.
        """
        if self.limiter.owed() == 0:
            for member in self.pool.idle():
                self.collector.dispatch(member, self.learning)
            self._until(lambda: not self.pool.busy)
            self.collector.insert_arrived()
        if self.progress.train_started is None and self.limiter.owed() > 0:
            self._save_for_sure()  # nothing can be saved while the compilation of the first update takes a minute
        while (owed := self.limiter.owed()) > 0 and now() < self.training_ends:
            self.learning.train(min(owed, self.config.updates_per_call))
            self._until(lambda: self.learning.training == 0)
        if self.progress.opt_steps > self.learning.params_header.opt_steps:
            self.learning.publish()
        self._until(lambda: not self.learning.publishing)
        if self.saver.is_due(self.progress.position):
            self.save()
        if self.reports.undecided is not None:
            next_steps = self.collector.rows * self.pool.num_workers
            if self.reports.is_deciding(self.progress.position, next_steps):
                self._decide()

    def _decide(self) -> None:
        """Wait for the evaluation that may end the run. After a signal, do not wait: a resumed run repeats it."""
        if self.reports.undecided is not None:
            began = now()
            self._until(lambda: self.interrupted or not self.manage.is_evaluating)
            self.progress.waited_for_evaluation(now() - began)
            if not self.interrupted:
                self.reports.undecided = None

    def step_offline(self) -> None:
        """Read a block if the limiter asks for one, otherwise make the updates of one train call.

        A call ends at each multiple of the periods of evaluations and checkpoints, and a version is published there.
        This holds even if a checkpoint is late, because the sizes of calls decide when replay gets new priorities. A
        checkpoint between these positions has the last version, so that it changes nothing in what is learned.
        """
        if not (owed := self.limiter.owed()):
            for member in self.pool.idle():
                self.collector.dispatch(member, self.learning)
            self._until(lambda: not self.pool.busy)
            self.collector.insert_arrived()
        else:
            position = self.progress.position
            if self.progress.train_started is None:  # nothing can be saved while its compilation takes a minute
                self._save_for_sure()
            if self.saver.is_due(position):
                self.save()
            periods = self.config.checkpoint.period, self.config.manage.eval_period
            due = [multiple_after(position, period) for period in periods]
            self.learning.train(min(owed, self.config.updates_per_call, *(each - position for each in due)))
            self._until(lambda: self.learning.training == 0)
            if self.progress.position in due:
                self.learning.publish()
                self._until(lambda: self.learning.is_idle)
            if self.reports.is_deciding(self.progress.position, self.config.updates_per_call):
                self._decide()

    def step_async(self) -> None:
        """Make all train and collect calls that `admission` allows now. Then handle the answers that are ready."""
        self.look()
        if self.collector.is_due():
            self.collector.insert_arrived()
        saving = self.saver.is_due(self.progress.position)
        if saving and self.is_settled():
            self.save()
            saving = False
        while not saving and (updates := self.admission.updates()):
            self.learning.train(updates)
        self.reanalysis.go_on(self.learning.pushed, self.progress.env_steps)
        held = {member.index for member, *_ in self.collector.arrived}
        longest_idle_first = sorted(self.pool.idle(), key=lambda member: member.issued)
        # If the limiter allows only a few calls and the order were by index, the last workers would stay idle.
        for member in longest_idle_first:
            if not self.admission.may_collect(self.collector.rows * member.share):
                break
            if member.index not in held:
                self.collector.dispatch(member, self.learning)
        assert self.calls.pending or self.collector.arrived or self.is_done(), f"nothing may go on: {self.limiter}"
        self.idle(skips_quiet=not saving)

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.idle()

    def idle(self, skips_quiet: bool = False) -> None:
        """Handle all answers that are ready, and what is due. If no answer is ready, wait for the first of them."""
        moment = now()
        due = min(self.reports.next, self.collector.window_ends, self.deadline or math.inf, moment + LOOK_S)
        if problem := self.health():
            raise RoleLost(problem)
        try:
            self.calls.react(self.manage.pending, due - moment, self.patient, skips_quiet)
        except (PeerLost, ObjectLost) as error:
            raise self.learning.blame(error) from error
        for pool in (self.pool, self.reanalysis.pool):
            if pool.busy:
                pool.kill_overdue(now())
        if self.deadline is not None and now() > self.deadline:
            raise RoleLost(f"no checkpoint within {RESCUE_S:g} s")
        self.manage.poll()
        if now() >= self.reports.next:
            self.reports.send(self.learning.params_header, "paused" if self.paused else "running")
        if self.config.stop.wall_s is not None and self.progress.process_s() >= self.config.stop.wall_s:
            self.stop("wall_s")

    def is_done(self) -> bool:
        if self.progress.goal_reached and self.reports.undecided is None:
            self.stop("return")
        if self.progress.position >= self.config.clock.total and self.admission.is_over():
            self.stop(self.config.clock.key)
        return self.stop_reason is not None

    def stop(self, reason: str) -> None:
        """Make the main loop end at its next check. Only the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def interrupt(self) -> None:
        """End the run after a signal, as soon as a checkpoint is saved."""
        self.interrupted = True
        self.training_ends = now() + UPDATES_S
        self.stop("signal")

    def toggle_pause(self) -> None:
        """Pause or continue the run. A paused run makes no new calls; calls in flight still end."""
        self.paused = not self.paused

    def go_on(self, params_header: LoadParams, params: Array) -> None:
        """Start from the parameters of a checkpoint. `progress` must have loaded the checkpoint's counters before."""
        self.learning.go_on(params_header, params)
        self.reports.go_on(self.config.clock.of(params_header))
        self.collector.issued = self.progress.env_steps
        self.saver.go_on(self.progress.position)

    def state(self) -> dict[str, Any]:
        """Return the orchestrator's part of a checkpoint, as JSON data. No train call may be in flight."""
        # Each incarnation of a proxy reserves max_restarts + 1 incarnations for each of its workers.
        lives = (member.incarnation for member in self.reanalysis.pool.members)
        last = max(self.pool.incarnation - 1, *(member.incarnation for member in self.pool.members), *lives)
        per_proxy = self.config.worker.incarnations_per_proxy if self.config.worker.num_proxies else 1
        return {
            "counts": {"version": self.learning.params_header.version, **self.progress.counts()},
            "progress": self.progress.state(),
            "limiter": self.limiter.state(),
            "shards": {name: array.tolist() for name, array in self.replay.state().items()},
            "incarnation": (last + 1) * per_proxy - 1,
            "workers": worker_layout(self.config),
            **self.reanalysis.state(),
            **self.reports.state(),
        }

    def finish(self) -> None:
        """Publish, save and evaluate the last parameters. After a signal, do not evaluate them."""
        self.reports.ending("the last checkpoint")
        self._settle()
        role, trainer = next(iter(self.trainers.items()))
        self.calls.expect(trainer.ask(TrainerRole.describe), role, self._on_described)
        self._until(lambda: self.trainer_facts is not None)
        if self.progress.opt_steps > self.learning.params_header.opt_steps:
            self.learning.publish()
            self._until(lambda: self.learning.is_idle)
        self.reports.send(self.learning.params_header, is_last=self.progress.position > 0)
        self._decide()
        self._save_for_sure()
        newest = self.learning.params_header, self.learning.newest
        if self.saver.problem is not None:
            self.saver.save_model(*newest)
            self._until(lambda: not self.saver.busy)
        self.reports.ending("the last evaluation")
        self.manage.finish(*newest, self.config.orchestrator.stall_s, is_over=lambda: self.interrupted)
        self.reports.ending("the last records")
        self.reports.take_uses()
        if (problem := self.saver.problem) is not None:
            exit_code = problem.exit_code if isinstance(problem, RunError) else None
            raise NotSaved(f"the final weights could not be saved: {problem}", exit_code)

    def rescue(self, whole: bool = True) -> None:
        """Save a checkpoint after a failure. Without `whole`, or if a role is lost, save only the model.

        Save nothing before the first step.
        """
        if self.learning.params is None or self.progress.position == 0:
            return
        if whole:
            self.deadline = now() + RESCUE_S
            self.reports.ending("what can be saved")
            try:
                self._settle()
                self._save_for_sure(workers=False)
                return
            except RunError as error:
                log.info("only the model can be saved: %s", error)
        self.manage.save(self.learning.params_header, self.learning.newest)

    def close(self, status: str, starts_manage: bool = True) -> None:
        """Close the environments, and have manage write its last records. `starts_manage`: see `ManageLink.close`."""
        self.manage.close(status, CLOSE_S, starts_manage)
        for member in self.pool.members:
            member.handle.ask(CollectRole.close)

    def is_settled(self) -> bool:
        return self.learning.is_idle and self.collector.inserting == 0

    def _settle(self) -> None:
        self.collector.insert_arrived()
        self._until(self.is_settled)

    def save(self, workers: bool = True) -> None:
        undecided = self.reports.undecided and self.reports.undecided[1]
        self.saver.begin(self.learning.params_header, self.learning.newest, self.state(), undecided, workers)

    def _save_for_sure(self, workers: bool = True) -> None:
        """Save a checkpoint, and wait until it is saved. Repeat this if manage dies meanwhile."""
        self._until(lambda: not self.saver.busy)
        restarts = -1
        while self.manage.restarts != restarts:
            restarts = self.manage.restarts
            self.save(workers)
            self._until(lambda: not self.saver.busy)
            if self.saver.problem is None:
                return

    def _on_described(self, ref: Ref[dict[str, Any]]) -> None:
        self.trainer_facts = get(ref)
