"""Orchestrator: starts, paces and stops everything. It has the only loop, and never touches an array."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from drl_cli.metrics.console import Console
from drl_cli.runtime.calls import Calls, blame
from drl_cli.runtime.config import Config
from drl_cli.runtime.errors import Diverged, RoleLost, RunError
from drl_cli.runtime.exploration import average
from drl_cli.runtime.hand_over import HandOver
from drl_cli.runtime.handles import Handle, ObjectLost, Ref, get
from drl_cli.runtime.manage import EvalReport
from drl_cli.runtime.manage_link import ManageLink
from drl_cli.runtime.messages import LoadParams, SampleBatch
from drl_cli.runtime.progress import Progress
from drl_cli.runtime.rate_limiter import Limiter
from drl_cli.runtime.replay_shards import ReplayShards
from drl_cli.runtime.saver import Saver
from drl_cli.runtime.trainer import TrainReport
from drl_cli.runtime.trainer_group import TrainerGroup
from drl_cli.runtime.worker_pool import Member, WorkerPool
from drl_cli.types import Array
from drl_cli.utils.clock import now
from drl_cli.utils.group import PeerLost

log = logging.getLogger(__name__)

RESCUE_S = 15.0  # for a last checkpoint when a role is lost
CLOSE_S = 10.0  # for manage to write what is left


class Orchestrator:
    """Issues every call and reacts to what comes back.

    `rows_per_collect` are the environment steps that one member of the pool takes in one call.
    """

    def __init__(
        self,
        config: Config,
        pool: WorkerPool,
        replay: ReplayShards,
        trainers: TrainerGroup,
        server: Handle,
        manage: ManageLink,
        share: Callable[[Ref], Ref],
        rows_per_collect: int,
        limiter: Limiter,
        progress: Progress,
        console: Console,
        folder: Path,
    ) -> None:
        self.config, self.pool, self.replay, self.trainers, self.server = config, pool, replay, trainers, server
        self.manage, self.share = manage, share
        self.limiter, self.progress, self.console = limiter, progress, console
        self.load = LoadParams(-1, 0, 0)
        self.params: Ref = None
        self.calls = Calls(config.orchestrator.stall_s)
        window_s = config.orchestrator.gather_window_s if config.mode == "async" else math.inf  # sync: a barrier
        self.hand_over = HandOver(pool, replay, limiter, progress, self.calls, rows_per_collect, window_s)
        self.training = 0
        self.prefetch = 1 if config.is_on_policy else 2  # train calls in flight: the next batch is drawn meanwhile
        self.publishing = False
        self.next_eval = config.manage.eval_period
        self.next_save = 0  # the first checkpoint is of the beginning: there is always one to go on from
        self.next_report = now() + config.logger.report_s
        self.stop_reason: str | None = None
        self.paused = self.interrupted = False
        self.deadline: float | None = None
        self.health: Callable[[], str | None] = lambda: None  # what is wrong with what the roles run on
        self.saver = Saver(config, folder, replay, trainers, pool, manage, self.calls.expect)
        manage.on_evaluation(self._on_evaluation)

    def run(self) -> None:
        """Train until a stop condition holds; the reason is in `stop_reason`."""
        for role, ref in zip(self.trainers.roles, self.trainers.connect(), strict=False):
            self.calls.expect(ref, role, get)
        if self.params is None:
            self._publish()
            self.calls.react((), 0.0, patient=())  # in this process version 0 is there at once
        else:  # going on: every role takes its part of the checkpoint over before anything moves
            self._until(lambda: not self.calls.pending)
        self._until(lambda: self.params is not None or self.config.steps_without_params > 0)
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

    def go_on(self, load: LoadParams, params: Array) -> None:
        """Begin with these parameters and with the counters as they are now, those of a checkpoint."""
        self.load, self.params = load, self.share(params)
        self.hand_over.issued = self.progress.env_steps
        self.next_eval = _multiple_after(load.env_steps, self.config.manage.eval_period)
        self.next_save = _multiple_after(self.progress.env_steps, self.config.checkpoint.period)
        self.calls.expect(self.server.call("push", load, self.params), "parameter server", get)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of this role, as json; no train call may be under way."""
        return {
            "counts": {"version": self.load.version, **self.progress.counts()},
            "progress": self.progress.state(),
            "limiter": self.limiter.state(),
            "shards": {name: array.tolist() for name, array in self.replay.state().items()},
            "incarnation": self._last_incarnation(),
            "workers": self.config.worker_layout,
        }

    def finish(self) -> None:
        """Publish, save and evaluate the last weights; an interrupt spares the evaluation."""
        self._settle()
        if self.progress.opt_steps > self.load.opt_steps:
            self._publish()
            self._until(lambda: not self.publishing)
        self._report()
        self._until(lambda: not self.saver.busy)
        self.saver.begin(self.load, self.params, self.state())
        self._until(lambda: not self.saver.busy)
        self.manage.finish(self.load, self.params, self.config.orchestrator.stall_s, is_over=lambda: self.interrupted)

    def rescue(self) -> None:
        """Save what there is when the run can't go on: a checkpoint, or at least the newest model."""
        if self.params is None:
            return
        self.deadline = now() + RESCUE_S
        try:
            self._settle()
            self._until(lambda: not self.saver.busy)
            self.saver.begin(self.load, self.params, self.state(), workers=False)
            self._until(lambda: not self.saver.busy)
        except RunError as error:
            log.info("only the model can be saved: %s", error)
            self.manage.save(self.load, self.params)

    def stop(self, reason: str) -> None:
        """End at the next opportunity."""
        self.stop_reason = self.stop_reason or reason

    def interrupt(self) -> None:
        """End as soon as all is saved."""
        self.interrupted = True
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
        """Stop every role; the last message that each gets."""
        self.manage.close(status, CLOSE_S)
        for member in self.pool.members:
            member.handle.call("close")

    # One step of the loop, by mode

    def _step_sync(self) -> None:
        """All workers collect with version k; barrier; the updates that are due; publish k + 1."""
        for member in self.pool.idle():
            self._dispatch(member)
        self._until(lambda: not self.pool.busy)
        self.hand_over.flush()
        while (owed := self.limiter.owed()) > 0:
            self._train(min(owed, self.config.updates_per_call))
            self._until(lambda: self.training == 0)
        if self.progress.opt_steps > self.load.opt_steps:
            self._publish()
        self._until(lambda: not self.publishing)
        if self._is_save_due():
            self._save()
        self._housekeeping()

    def _step_async(self) -> None:
        """Keep every worker and two train calls going, as far as the limiter allows; react to what is ready."""
        if self.hand_over.is_due():
            self.hand_over.flush()
        draining = self.hand_over.issued >= self.config.total_env_steps
        saving = self._is_save_due()
        if saving and self._is_settled():
            self._save()
            saving = False
        while self.training < self.prefetch and not saving:
            updates = self.config.updates_per_call
            if draining and not self.limiter.free:
                updates = min(updates, self.limiter.owed())
            if updates == 0 or not self.limiter.may_sample(updates):
                break
            self._train(updates)
        held = {done.member for done in self.hand_over.arrived}
        longest_idle_first = sorted(self.pool.idle(), key=lambda member: member.issued)
        for member in longest_idle_first:  # where there is room for one, the same would do all the work
            if not self._may_dispatch():
                break
            if member.index not in held:
                self._dispatch(member)
        assert self.calls.pending or self.hand_over.arrived or self._done(), f"nothing may go on: {self.limiter}"
        self._idle()

    def _is_settled(self) -> bool:
        """Whether what was issued has been done, but for collects."""
        return self.training == 0 and self.hand_over.inserting == 0 and not self.publishing

    def _last_incarnation(self) -> int:
        """The highest that a worker has; behind a proxy each may have been restarted in the proxy's life."""
        highest = max(member.incarnation for member in self.pool.members)
        lives = self.config.worker.max_restarts + 1 if self.config.num_proxies else 1
        return (highest + 1) * lives - 1

    def _settle(self) -> None:
        self.hand_over.flush()
        self._until(self._is_settled)

    def _is_save_due(self) -> bool:
        return self.next_save <= self.progress.env_steps < self.config.total_env_steps and not self.saver.busy

    def _save(self) -> None:
        self.next_save = _multiple_after(self.progress.env_steps, self.config.checkpoint.period)
        self.saver.begin(self.load, self.params, self.state())

    # Calls out

    def _may_dispatch(self) -> bool:
        """Whether one more collect may start; on-policy not with parameters that are being replaced right now.

        Workers begin at random while the trainer starts, which takes longer.
        """
        if self.hand_over.issued >= self.config.total_env_steps or (self.config.is_on_policy and self.publishing):
            return False
        if self.params is None and self.hand_over.issued >= self.config.steps_without_params:
            return False
        return self.limiter.may_collect(self.hand_over.rows)

    def _dispatch(self, member: Member) -> None:
        random_actions = self.hand_over.issued < self.config.random_steps
        if self.pool.fetches(member, self.load):
            self.progress.trace.add(7, member=member.index, version=self.load.version)
        ref = self.pool.dispatch(member, replace(self.load, random_actions=random_actions), self.params)
        self.hand_over.issue()
        self.calls.expect(ref, f"{self.pool.name} {member.index}", self.hand_over.on_collected)

    def _train(self, updates: int) -> None:
        self.progress.trainer_idle.stop(now())
        if self.progress.train_started is None:
            self.progress.train_started = now()
        version = self.load.version + self.publishing  # of the newest parameters that the trainer has by then
        message = SampleBatch(updates, self.config.trainer.batch_size, version, self.config.trainer.num)
        shard, parts = self.replay.sample(message)
        reports, priorities = self.trainers.train(parts)
        self.progress.trace.add(3)
        self.progress.trace.add(4, len(reports))
        self.limiter.issue_sample(updates)
        self.training += 1
        missing = set(reports)

        def on_report(ref: Ref) -> None:
            try:
                get(ref)
            except Diverged as error:
                raise self.trainers.at_fault(reports, error) from error
            missing.remove(ref)
            if not missing:
                self._on_trained(reports[0], updates, shard, priorities)

        for role, ref in zip(self.trainers.roles, reports, strict=True):
            self.calls.expect(ref, role, on_report)

    def _publish(self) -> None:
        version = self.load.version + 1
        load, params = self.trainers.publish(version, self.progress.env_steps)
        self.publishing = True
        self.calls.expect(load, self.trainers.roles[0], lambda ref: self._on_published(ref, params))

    # Reactions

    def _on_trained(self, ref: Ref, asked: int, shard: int, priorities: list[Ref]) -> None:
        report: TrainReport = get(ref)
        if self.config.replay.wants_priorities:
            # Sent only now: replay answers in order, and would keep the next batch waiting for priorities to come.
            for part in priorities:
                self.calls.expect(self.replay.update_priorities(shard, part), "replay", get)
                self.progress.trace.add(5)
        self.limiter.unserved(asked - report.num_batches, report.dropped)
        self.training -= 1
        if self.training == 0:
            self.progress.trainer_idle.start(now())
        self.progress.trained(report, shard)
        due = report.opt_steps - self.load.opt_steps >= self.config.orchestrator.sample_load_ratio
        if self.config.mode == "async" and due and not self.publishing:
            self._publish()

    def _on_published(self, ref: Ref, params: Ref) -> None:
        self.load = get(ref)
        self.params = self.share(params)
        self.publishing = False
        self.progress.loads += 1
        self.progress.trace.add(6)
        self.calls.expect(self.server.call("push", self.load, params), "parameter server", get)
        if self.next_eval <= self.load.env_steps < self.config.total_env_steps:  # the last is evaluated by finish
            self.next_eval = _multiple_after(self.load.env_steps, self.config.manage.eval_period)
            self.manage.evaluate(self.load, self.params)

    def _on_evaluation(self, report: EvalReport) -> None:
        if self.progress.evaluated(report):
            self.stop("return")
        self.console.evaluation(report.statistics, report.load.env_steps, report.is_best)

    # Waiting

    def _idle(self) -> None:
        self._wait()
        self._housekeeping()

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._idle()

    def _wait(self) -> None:
        """React to all that is ready; wait for the first if nothing is, but not beyond what is due by the clock."""
        due = min(self.next_report, self.hand_over.ends, self.pool.next_deadline(), self.deadline or math.inf)
        if problem := self.health():
            raise RoleLost(problem)
        self.manage.poll()
        try:
            self.calls.react(self.manage.under_way(), due - now(), patient=self.pool.busy)
        except (PeerLost, ObjectLost) as error:
            shards = {f"replay {i}": shard for i, shard in enumerate(self.replay.shards)}
            trainers = dict(zip(self.trainers.roles, self.trainers.trainers, strict=True))
            raise blame({**shards, **trainers}, error) from error
        self.pool.kill_overdue(now())
        if self.deadline is not None and now() > self.deadline:
            raise RoleLost(f"no checkpoint within {RESCUE_S:g} s")

    def worker_wait_s(self) -> float:
        """Seconds that workers had nothing to do, summed over them."""
        return self.pool.wait_seconds(self.progress.ended or now())

    def _housekeeping(self) -> None:
        self.manage.poll()
        if now() >= self.next_report:
            self._report()
        if self.config.stop.wall_s is not None and self.progress.process_s() >= self.config.stop.wall_s:
            self.stop("wall_s")

    def _report(self) -> None:
        self.next_report = now() + self.config.logger.report_s
        scalars = self.progress.report(self.worker_wait_s())
        exploration = average(self.config.worker.exploration, self.load.exploration, self.config.num_workers)
        scalars |= {f"rollout/{name}": value for name, value in exploration.items()}
        self.manage.report(scalars, self.progress.env_steps)
        self.console.report(scalars, self.progress.env_steps)

    def _done(self) -> bool:
        if self.progress.env_steps >= self.config.total_env_steps and self.training == 0 and not self.pool.busy:
            paid = self.limiter.free or self.limiter.owed() == 0
            if paid and not self.hand_over.arrived:
                self.stop("total_env_steps")
        return self.stop_reason is not None


def _multiple_after(env_steps: int, period: int) -> int:
    return period * (env_steps // period + 1)
