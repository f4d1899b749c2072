"""Orchestrator: starts, paces and stops everything. It has the only loop, and never touches an array."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from drl_cli.metrics.console import Console
from drl_cli.runtime.config import Config
from drl_cli.runtime.errors import RoleLost
from drl_cli.runtime.exploration import average
from drl_cli.runtime.handles import ActorDied, Handle, ObjectLost, Ref, get, wait
from drl_cli.runtime.manage import EvalReport
from drl_cli.runtime.manage_link import ManageLink
from drl_cli.runtime.messages import InsertTransition, LoadParams, SampleBatch
from drl_cli.runtime.progress import Progress
from drl_cli.runtime.rate_limiter import Limiter
from drl_cli.runtime.replay_shards import ReplayShards
from drl_cli.runtime.trainer import TrainReport
from drl_cli.runtime.trainer_group import TrainerGroup
from drl_cli.runtime.worker_pool import Collected, Member, WorkerPool
from drl_cli.utils.clock import now
from drl_cli.utils.group import PeerLost

log = logging.getLogger(__name__)


class Orchestrator:
    """Issues every call and reacts to what comes back; `pending` maps each reference to what to do with it.

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
    ) -> None:
        self.config, self.pool, self.replay, self.trainers, self.server = config, pool, replay, trainers, server
        self.manage, self.share, self.rows = manage, share, rows_per_collect
        self.limiter, self.progress, self.console = limiter, progress, console
        self.load = LoadParams(-1, 0, 0)
        self.params: Ref = None
        self.pending: dict[Ref, tuple[str, Callable[[Ref], None]]] = {}
        self.arrived: list[Collected] = []
        self.window_ends: float | None = None
        self.training = 0
        self.prefetch = 1 if config.is_on_policy else 2  # train calls in flight: the next batch is drawn meanwhile
        self.publishing = False
        self.issued_env_steps = 0
        self.next_eval = config.manage.eval_period
        self.next_save = config.checkpoint.period
        self.next_report = now() + config.logger.report_s
        self.last_answer = now()
        self.stop_reason: str | None = None
        self.paused = False
        manage.on_evaluation(self._on_evaluation)

    def run(self) -> None:
        """Train until a stop condition holds; the reason is in `stop_reason`."""
        for role, ref in zip(self.trainers.roles, self.trainers.connect(), strict=False):
            self.pending[ref] = (role, get)
        self._publish()
        self._until(lambda: self.params is not None)
        step = self._step_async if self.config.mode == "async" else self._step_sync
        while not self._done():
            if self.paused:
                self._hand_over_if_due()
                self._idle()
            else:
                step()
        if self.stop_reason == "total_env_steps":
            self._until(lambda: not self.pending)
        self.progress.end()

    def finish(self) -> None:
        """Publish, save and evaluate the last weights."""
        self._until(lambda: self.training == 0 and not self.publishing)
        if self.progress.opt_steps > self.load.opt_steps:
            self._publish()
            self._until(lambda: not self.publishing)
        self._report()
        if self.params is not None:
            self.manage.finish(self.load, self.params, self.config.orchestrator.stall_s)

    def stop(self, reason: str) -> None:
        """End at the next opportunity."""
        self.stop_reason = self.stop_reason or reason

    def pause(self) -> None:
        """Issue no more calls; what is under way ends. Inserts, samples and loads then stand still."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False

    def close(self, status: str) -> None:
        """Stop every role; the last message that each gets."""
        self.manage.close(status)
        for member in self.pool.members:
            member.handle.call("close")

    # One step of the loop, by mode

    def _step_sync(self) -> None:
        """All workers collect with version k; barrier; the updates that are due; publish k + 1."""
        for member in self.pool.idle():
            self._dispatch(member)
        self._until(lambda: not self.pool.busy)
        self._hand_over()
        while (owed := self.limiter.owed()) > 0 and not self.stop_reason:
            self._train(min(owed, self.config.updates_per_call))
            self._until(lambda: self.training == 0)
        if self.progress.opt_steps > self.load.opt_steps:
            self._publish()
        self._until(lambda: not self.publishing)
        self._housekeeping()

    def _step_async(self) -> None:
        """Keep every worker and two train calls going, as far as the limiter allows; react to what is ready."""
        self._hand_over_if_due()
        draining = self.issued_env_steps >= self.config.total_env_steps
        while self.training < self.prefetch:
            updates = self.config.updates_per_call
            if draining and not self.limiter.free:
                updates = min(updates, self.limiter.owed())
            if updates == 0 or not self.limiter.may_sample(updates):
                break
            self._train(updates)
        held = {done.member for done in self.arrived}
        for member in self.pool.idle():
            if not self._may_dispatch():
                break
            if member.index not in held:
                self._dispatch(member)
        assert self.pending or self.arrived or self._done(), f"nothing may go on: {self.limiter}"
        self._idle()

    # Calls out

    def _may_dispatch(self) -> bool:
        """Whether one more collect may start; on-policy not with parameters that are being replaced right now."""
        if self.issued_env_steps >= self.config.total_env_steps or (self.config.is_on_policy and self.publishing):
            return False
        return self.limiter.may_collect(self.rows)

    def _dispatch(self, member: Member) -> None:
        random_actions = self.issued_env_steps < self.config.random_steps
        if self.pool.fetches(member, self.load):
            self.progress.trace.add(7, member=member.index, version=self.load.version)
        ref = self.pool.dispatch(member, replace(self.load, random_actions=random_actions), self.params)
        self.limiter.issue_collect(self.rows)
        self.issued_env_steps += self.rows
        self.pending[ref] = (f"{self.pool.name} {member.index}", self._on_collected)

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
            get(ref)
            missing.remove(ref)
            if not missing:
                self._on_trained(reports[0], updates, shard, priorities)

        for role, ref in zip(self.trainers.roles, reports, strict=True):
            self.pending[ref] = (role, on_report)

    def _publish(self) -> None:
        version = self.load.version + 1
        load, params = self.trainers.publish(version, self.progress.env_steps)
        self.publishing = True
        self.pending[load] = (self.trainers.roles[0], lambda ref: self._on_published(ref, params))

    # Reactions

    def _on_collected(self, ref: Ref) -> None:
        if not self.arrived:
            self.window_ends = now() + self.config.orchestrator.gather_window_s
        self.arrived.append(self.pool.finish(ref))

    def _hand_over_if_due(self) -> None:
        """The gather window is over, or there is nobody left to wait for."""
        if self.window_ends is not None and (now() >= self.window_ends or not self.pool.busy):
            self._hand_over()

    def _hand_over(self) -> None:
        """Insert what the workers that are done have collected, in order of the workers."""
        for done in sorted(self.arrived, key=lambda done: done.member):
            if done.header is None or done.columns is None:
                self.progress.worker_restarts += done.restarts
                self.issued_env_steps -= self.rows
                self.limiter.land(self.rows, 0)
                continue
            ack = self.replay.insert(done.header, done.columns)
            self.pending[ack] = ("replay", partial(self._on_inserted, done.header))
            self.progress.collected(done.header)
            for fault in done.header.faults:
                log.warning(fault)
            self.issued_env_steps += done.header.env_steps - self.rows
            self.limiter.land(self.rows, done.header.rows)
            self.progress.trace.merge(done.header.routes or {1: 1, 8: done.loaded})
            self.progress.trace.add(2)
            self.progress.trace.add(3)
        self.arrived, self.window_ends = [], None

    def _on_inserted(self, header: InsertTransition, ref: Ref) -> None:
        """The block is in replay, or its bytes were lost on the way, with the node that had them."""
        try:
            get(ref)
        except ObjectLost as error:
            self.progress.lost(header)
            self.issued_env_steps -= header.env_steps
            self.limiter.land(0, -header.rows)
            log.warning("a block of %d transitions was lost on its way to replay (%s)", header.rows, error)

    def _on_trained(self, ref: Ref, asked: int, shard: int, priorities: list[Ref]) -> None:
        report: TrainReport = get(ref)
        if self.config.replay.wants_priorities:
            # Sent only now: replay answers in order, and would keep the next batch waiting for priorities to come.
            for part in priorities:
                self.pending[self.replay.update_priorities(shard, part)] = ("replay", get)
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
        self.pending[self.server.call("push", self.load, params)] = ("parameter server", get)
        if self.load.env_steps >= self.next_eval:
            self.next_eval = _multiple_after(self.load.env_steps, self.config.manage.eval_period)
            self.manage.evaluate(self.load, self.params)
        if self.load.env_steps >= self.next_save:
            self.next_save = _multiple_after(self.load.env_steps, self.config.checkpoint.period)
            self.manage.save(self.load, self.params)

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
        moment = now()
        limit = self.next_report - moment
        if self.window_ends is not None:
            limit = min(limit, self.window_ends - moment)
        self.manage.poll()
        refs = list(self.pending)
        if self.manage.evaluating is not None:
            refs.append(self.manage.evaluating)
        ready = wait(refs, max(0.0, limit))
        for ref in ready:
            if ref in self.pending:
                role, react = self.pending.pop(ref)
                try:
                    react(ref)
                except ActorDied as error:
                    raise RoleLost(f"{role} died: {error}") from error
                except PeerLost as error:
                    raise self.trainers.blame(error) from error
        self._watch(bool(ready))

    def _watch(self, progressed: bool) -> None:
        """Raise when roles owe an answer and none has come for stall_s."""
        moment = now()
        if progressed or not self.pending:
            self.last_answer = moment
        elif moment - self.last_answer > self.config.orchestrator.stall_s:
            roles = sorted({role for role, _ in self.pending.values()})
            raise RoleLost(f"no answer for {self.config.orchestrator.stall_s:g} s from: {', '.join(roles)}")

    def worker_wait_s(self) -> float:
        """Seconds that workers had nothing to do, summed over them."""
        return self.pool.wait_seconds(self.progress.ended or now())

    def _housekeeping(self) -> None:
        self.manage.poll()
        if now() >= self.next_report:
            self._report()
        if self.config.stop.wall_s is not None and self.progress.wall_s() >= self.config.stop.wall_s:
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
            if paid and not self.arrived:
                self.stop("total_env_steps")
        return self.stop_reason is not None


def _multiple_after(env_steps: int, period: int) -> int:
    return period * (env_steps // period + 1)
