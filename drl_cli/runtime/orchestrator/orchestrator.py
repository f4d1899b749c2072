"""Orchestrator: starts, paces and stops everything. It has the only loop, and sees headers and references only."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drl_cli.errors import RoleLost, RunError
from drl_cli.metrics.console import Console
from drl_cli.optim.group import PeerLost
from drl_cli.runtime.config import Config
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.edges.worker_pool import Member
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.hand_over import HandOver
from drl_cli.runtime.orchestrator.learning import Learning
from drl_cli.runtime.orchestrator.pace import Pace
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter
from drl_cli.runtime.orchestrator.reports import Reports
from drl_cli.runtime.orchestrator.saver import Saver
from drl_cli.runtime.place.handles import ObjectLost, Ref, get
from drl_cli.types import Array
from drl_cli.utils.clock import now

log = logging.getLogger(__name__)

UPDATES_S = 3.0  # for the updates that are due when a signal comes
RESCUE_S = 15.0  # for a last checkpoint when a role is lost
CLOSE_S = 10.0  # for manage to write what is left


class Orchestrator:
    """Issues every call and reacts to what comes back. `folder` is the run's."""

    def __init__(
        self, config: Config, edges: Edges, limiter: Limiter, progress: Progress, console: Console, folder: Path
    ) -> None:
        self.config, self.limiter, self.progress = config, limiter, progress
        self.pool, self.replay, self.trainers, self.manage = edges.pool, edges.replay, edges.trainers, edges.manage
        self.manage.on_evaluation = self._on_evaluation
        self.calls = Calls(config.orchestrator.stall_s)
        self.hand_over = HandOver(config, edges, limiter, progress, self.calls)
        self.reports = Reports(config, edges, progress, console, self.calls)
        self.learning = Learning(config, edges, limiter, progress, self.calls)
        self.learning.on_published = self.reports.published
        self.pace = Pace(config, limiter, progress, self.hand_over, self.learning)
        self.saver = Saver(config, edges, self.calls, folder / "checkpoints")
        self.stop_reason: str | None = None
        self.paused = self.interrupted = False
        self.deadline: float | None = None
        self.ends = math.inf  # when no more train call is begun
        self.trainer_facts: Mapping[str, Any] | None = None  # for run.json; known when it has learned
        self.health: Callable[[], str | None] = lambda: None  # what is wrong with what the roles run on

    def run(self) -> None:
        """Train until a stop condition holds; the reason is in `stop_reason`."""
        self.learning.connect()
        if self.learning.params is None:
            self.learning.publish()
            self.calls.react((), 0.0, patient=())  # in this process version 0 is there at once
        else:  # going on: every role takes its part of the checkpoint over before anything moves
            self._until(lambda: not self.calls.pending)
        self._until(lambda: self.learning.params is not None or self.config.steps_without_params > 0)
        step = self._step_async if self.config.mode == "async" else self._step_sync
        while not self._done():
            if self.paused:
                if self.hand_over.is_due():
                    self.hand_over.flush()
                self._idle()
            else:
                step()
        if self.stop_reason == "total_env_steps":
            self._until(lambda: not self.calls.pending)
        self.progress.end()

    def go_on(self, params_header: LoadParams, params: Array) -> None:
        """Begin with these parameters, and with the counters that `progress` has loaded from the same checkpoint."""
        self.learning.go_on(params_header, params)
        self.reports.go_on(params_header.env_steps)
        self.hand_over.issued = self.progress.env_steps
        self.saver.go_on(self.progress.env_steps)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of the orchestrator, as json; no train call may be under way."""
        return {
            "counts": {"version": self.learning.params_header.version, **self.progress.counts()},
            "progress": self.progress.state(),
            "limiter": self.limiter.state(),
            "shards": {name: array.tolist() for name, array in self.replay.state().items()},
            "incarnation": self._last_incarnation(),
            "workers": self.config.worker_layout,
        }

    def finish(self) -> None:
        """Publish, save and evaluate the last weights; an interrupt spares the evaluation."""
        self.reports.ending("the last checkpoint")
        self._settle()
        self.calls.expect(self.trainers.describe(), self.trainers.roles[0], self._on_described)
        self._until(lambda: self.trainer_facts is not None)
        if self.learning.is_ahead:
            self.learning.publish()
            self._until(lambda: self.learning.is_idle)
        self.reports.send(self.learning.params_header)
        self._until(lambda: not self.saver.busy)
        self._save()
        self._until(lambda: not self.saver.busy)
        newest = self.learning.params_header, self.learning.params
        self.reports.ending("the last evaluation")
        self.manage.finish(*newest, self.config.orchestrator.stall_s, is_over=lambda: self.interrupted)

    def rescue(self) -> None:
        """Save a checkpoint when the run can't go on, or where a role for it is missing, at least the newest model."""
        if self.learning.params is None:
            return
        self.deadline = now() + RESCUE_S
        self.reports.ending("what can be saved")
        try:
            self._settle()
            self._until(lambda: not self.saver.busy)
            self._save(workers=False)
            self._until(lambda: not self.saver.busy)
        except RunError as error:
            log.info("only the model can be saved: %s", error)
            self.manage.save(self.learning.params_header, self.learning.params)

    def stop(self, reason: str) -> None:
        """End at the next opportunity."""
        self.stop_reason = self.stop_reason or reason

    def interrupt(self) -> None:
        """End as soon as all is saved."""
        self.interrupted = True
        self.ends = now() + UPDATES_S
        self.stop("signal")

    def pause(self) -> None:
        """Issue no more calls; what is under way ends. Inserts, samples and loads then stand still."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False

    def toggle_pause(self) -> None:
        """Pause, or go on."""
        self.paused = not self.paused

    def close(self, status: str) -> None:
        """Stop every role. Nobody is called after this."""
        self.manage.close(status, CLOSE_S)
        for member in self.pool.members:
            member.handle.call("close")

    # One step of the loop, by mode

    def _step_sync(self) -> None:
        """All workers collect with version k; barrier; the updates that are due; publish k + 1.

        Updates that a signal has kept from being made, since they take long, are made first when the run goes on.
        """
        self._update_and_publish()
        for member in self.pool.idle():
            self._dispatch(member)
        self._until(lambda: not self.pool.busy)
        self.hand_over.flush()
        self._update_and_publish()
        if self.saver.is_due(self.progress.env_steps):
            self._save()
        self._housekeeping()

    def _update_and_publish(self) -> None:
        while (owed := self.limiter.owed()) > 0 and now() < self.ends:
            self.learning.train(min(owed, self.config.updates_per_call))
            self._until(lambda: self.learning.training == 0)
        if self.learning.is_ahead:
            self.learning.publish()
        self._until(lambda: self.learning.is_idle)

    def _step_async(self) -> None:
        """Keep every worker and two train calls going, as far as the limiter allows; react to what is ready."""
        if self.hand_over.is_due():
            self.hand_over.flush()
        saving = self.saver.is_due(self.progress.env_steps)
        if saving and self._is_settled():
            self._save()
            saving = False
        while not saving and (updates := self.pace.updates()):
            self.learning.train(updates)
        held = {done.member for done in self.hand_over.arrived}
        longest_idle_first = sorted(self.pool.idle(), key=lambda member: member.issued)
        for member in longest_idle_first:  # where there is room for one, the same would do all the work
            if not self.pace.may_collect():
                break
            if member.index not in held:
                self._dispatch(member)
        assert self.calls.pending or self.hand_over.arrived or self._done(), f"nothing may go on: {self.limiter}"
        self._idle()

    def _is_settled(self) -> bool:
        """Whether all calls have been answered but collects."""
        return self.learning.is_idle and self.hand_over.inserting == 0

    def _last_incarnation(self) -> int:
        """The highest incarnation that a worker may have had.

        A proxy's workers are restarted by the proxy, up to max_restarts times in each of the proxy's own incarnations.
        """
        highest = max(member.incarnation for member in self.pool.members)
        lives = self.config.worker.max_restarts + 1 if self.config.num_proxies else 1
        return (highest + 1) * lives - 1

    def _on_described(self, ref: Ref) -> None:
        self.trainer_facts = get(ref)

    def _settle(self) -> None:
        """Hand over what has arrived, and wait for all calls but collects."""
        self.hand_over.flush()
        self._until(self._is_settled)

    def _save(self, workers: bool = True) -> None:
        self.saver.begin(self.learning.params_header, self.learning.params, self.state(), workers)

    def _dispatch(self, member: Member) -> None:
        params_header = replace(self.learning.params_header, random_actions=self.pace.is_random())
        comes_back = member.is_back and params_header.version >= 0
        self.hand_over.dispatch(member, params_header, self.learning.pull() if comes_back else self.learning.params)

    # Waiting

    def _idle(self) -> None:
        self._wait()
        self._housekeeping()

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._idle()

    def _wait(self) -> None:
        """React to all answers that are there; wait for one if there are none, until something is due by the clock."""
        due = min(self.reports.next, self.hand_over.ends, self.pool.next_deadline(), self.deadline or math.inf)
        if problem := self.health():
            raise RoleLost(problem)
        self.manage.poll()
        try:
            self.calls.react(self.manage.under_way(), due - now(), patient=self.pool.busy)
        except (PeerLost, ObjectLost) as error:
            raise self.learning.blame(error) from error
        self.pool.kill_overdue(now())
        if self.deadline is not None and now() > self.deadline:
            raise RoleLost(f"no checkpoint within {RESCUE_S:g} s")

    def _housekeeping(self) -> None:
        self.manage.poll()
        if now() >= self.reports.next:
            self.reports.send(self.learning.params_header, "paused" if self.paused else "running")
        if self.config.stop.wall_s is not None and self.progress.process_s() >= self.config.stop.wall_s:
            self.stop("wall_s")

    def _on_evaluation(self, report: EvalReport) -> None:
        if self.progress.evaluated(report):
            self.stop("return")
        self.reports.evaluated(report)

    def _done(self) -> bool:
        if self.pace.is_over():
            self.stop("total_env_steps")
        return self.stop_reason is not None
