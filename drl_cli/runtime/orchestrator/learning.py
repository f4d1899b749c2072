"""Learning: has trainers update on batches from replay, returns priorities to replay, and publishes parameters."""

import math
from collections.abc import Callable, Sequence
from typing import cast

from drl_cli.chains.process_group import PeerLost
from drl_cli.config.config import Config
from drl_cli.errors import Diverged, RoleLost
from drl_cli.runtime.edges.calls import GRACE_S, Calls, blame
from drl_cli.runtime.interfaces import ServerRole, TrainerRole
from drl_cli.runtime.messages import SampleBatch, TrainReport, UpdatePriority
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter
from drl_cli.runtime.place.handles import ActorDied, Ref, get, wait
from drl_cli.types import Array, LoadParams
from drl_cli.utils.clock import now

CALL_S = 0.2
"""Planned maximum duration [s] of a train call if trainer.updates_per_call=null. Longer calls delay new versions."""
PUSH_S = 0.1
"""Minimum time [s] between two pushes to the parameter server in mode=async. A version in between is only pushed before
a restarted worker pulls it."""


class Learning:
    """Calls all trainers, which average their gradients and keep equal parameters. The first trainer publishes them.

    `on_published` is called with `params_header` and `params` of every new version. `params` is a reference to the
    parameters, or None before the first version. `training` counts the train calls in flight, each with up to
    `call_updates` updates. `publishing` is True while a publish call is in flight.
    """

    def __init__(
        self,
        config: Config,
        edges: Edges,
        limiter: Limiter,
        progress: Progress,
        calls: Calls,
        on_published: Callable[[LoadParams, Ref[Array]], None],
    ) -> None:
        self.config, self.limiter, self.progress, self.calls = config, limiter, progress, calls
        self.replay, self.trainers, self.server, self.share = edges.replay, edges.trainers, edges.server, edges.share
        self.first = next(iter(self.trainers))  # the name of the first trainer
        self.on_published = on_published
        self.params_header = LoadParams(-1, 0, 0)
        self.params: Ref[Array] | None = None
        self.training = 0
        self.publishing = False
        # On-policy, every batch is followed by a version, which the train call can return: this saves a call.
        self.publishes_with_train = (
            config.mode == "async" and config.is_on_policy and config.orchestrator.sample_load_ratio is None
        )
        self.push_s = PUSH_S if config.mode == "async" else 0.0
        self.pushed_at = -math.inf  # time of the last push to the parameter server
        self.pushed = self.params_header  # header of the parameter server's newest version
        self.is_pushed = True  # whether the parameter server has the newest version
        self.writes = config.replay.has_priorities or config.writes  # whether trainers send new values of rows
        self.is_sized = not config.is_repeatable and config.trainer.updates_per_call is None
        self.call_updates = 1 if self.is_sized else config.updates_per_call  # 1 until an update has been timed

    @property
    def is_idle(self) -> bool:
        return self.training == 0 and not self.publishing

    @property
    def newest(self) -> Ref[Array]:
        """The parameters of the newest version. The first version must have been published."""
        assert self.params is not None
        return self.params

    def connect(self) -> None:
        """Connect the trainers to each other if there are several."""
        if len(self.trainers) > 1:
            address = cast(tuple[str, int], self.trainers[self.first].ask(TrainerRole.listen))
            for role, trainer in self.trainers.items():
                self.calls.expect(trainer.ask(TrainerRole.join, address), role, get)

    def go_on(self, params_header: LoadParams, params: Array) -> None:
        self.params_header, self.params = params_header, self.share(params)
        self._push(self.params)

    def train(self, updates: int) -> None:
        """Have replay draw batches for one train call, and have the trainers make `updates` updates."""
        self.progress.trainer_idle.stop(now())
        if self.progress.train_started is None:
            self.progress.train_started = now()
        version = self.params_header.version
        if self.publishing:
            version += 1  # the publish call in flight ends before this call
        size, num = self.config.trainer.batch_size, self.config.trainer.num
        message = SampleBatch(updates, size, version, num, self.progress.env_steps)
        shard, batches = self.replay.sample(message)
        self.training += 1  # before the call, because a local trainer updates during the call
        reports, priorities = list[Ref[TrainReport]](), list[Ref[UpdatePriority | None]]()
        published: tuple[Ref[LoadParams | None], Ref[Array | None]] | None = None
        for trainer, batch in zip(self.trainers.values(), batches, strict=True):
            if self.publishes_with_train and not self.publishing and not reports:
                args = (*batch, self.params_header)
                report, new, header, params = trainer.ask_parts(4, TrainerRole.train_and_publish, *args)
                published = header, params
            else:
                report, new = trainer.ask_parts(2, TrainerRole.train, *batch)
            reports.append(report)
            priorities.append(new)
        self.progress.trace.add(3)
        self.progress.trace.add(4, len(reports))
        self.limiter.issue_sample(updates)
        missing = set(reports)

        def on_report(ref: Ref[TrainReport]) -> None:
            """Count what the train call has done, send new priorities to replay, and publish a version if it is due."""
            try:
                get(ref)
            except Diverged as error:
                raise at_fault(reports, error) from error
            missing.remove(ref)
            if missing:
                return
            report = get(reports[0])
            if self.writes:
                # Send priorities only once they are ready: replay answers in order, and the next batch would wait.
                for part in priorities:
                    self.calls.expect(self.replay.update_priorities(shard, part), "replay", get, quiet=True)
                    self.progress.trace.add(5)
            self.limiter.served(updates, report.num_batches, report.waiting, report.repeats)
            self.training -= 1
            if self.training == 0:
                self.progress.trainer_idle.start(now())
            self.progress.trained(report, shard)
            if self.is_sized and report.num_batches:
                fitting = int(CALL_S * report.num_batches / max(1e-9, report.seconds))
                self.call_updates = max(1, min(self.config.updates_per_call, fitting))
            if published is None and self.config.mode == "async":
                self._publish_if_due(report)
            elif published is not None and get(published[0]) is not None:
                self._on_published(*cast(tuple[Ref[LoadParams], Ref[Array]], published))

        for role, ref in zip(self.trainers, reports, strict=True):
            self.calls.expect(ref, role, on_report)

    def publish(self) -> None:
        version, env_steps = self.params_header.version + 1, self.progress.env_steps
        params_header, params = self.trainers[self.first].ask_parts(2, TrainerRole.publish, version, env_steps)
        self.publishing = True
        self.calls.expect(params_header, self.first, lambda ref: self._on_published(ref, params))

    def pull(self) -> Ref[Array]:
        """Pull the newest parameters for a restarted worker. The node that has `self.params` may be lost."""
        # The server answers in order, so these parameters belong to `self.params_header`, which was pushed before.
        if not self.is_pushed:
            self._push(self.newest)
        params_header, params = self.server.ask_parts(2, ServerRole.pull)
        self.calls.expect(params_header, "parameter server", get)
        return params

    def blame(self, error: Exception) -> RoleLost:
        """Return an error that names the lost trainer or replay shard, after another role reported `error`."""
        shards = {f"replay {i}": shard for i, shard in enumerate(self.replay.shards)}
        return blame({**shards, **self.trainers}, error)

    def _publish_if_due(self, report: TrainReport) -> None:
        due = report.opt_steps - self.params_header.opt_steps >= self.config.sample_load_ratio
        due &= report.repeats == 0 or self.config.orchestrator.sample_load_ratio is not None
        if due and not self.publishing:
            self.publish()

    def _on_published(self, ref: Ref[LoadParams], params: Ref[Array]) -> None:
        self.params_header = get(ref)
        self.params = self.share(params)
        self.publishing = False
        self.progress.loads += 1
        self.progress.trace.add(6)
        self.is_pushed = False
        if now() - self.pushed_at >= self.push_s:
            self._push(params)
        self.on_published(self.params_header, self.params)

    def _push(self, params: Ref[Array]) -> None:
        self.is_pushed, self.pushed_at, self.pushed = True, now(), self.params_header
        ref = self.server.ask(ServerRole.push, self.params_header, cast(Array, params))
        self.calls.expect(ref, "parameter server", get, quiet=True)


def at_fault(reports: Sequence[Ref[TrainReport]], error: Diverged) -> Diverged:
    """Return the error of the trainer whose part of the batch has bad data, or `error` if all parts are good."""
    silent, until = list(reports), now() + GRACE_S
    while not error.is_data and silent and (ready := wait(silent, max(0.0, until - now()))):
        silent = [ref for ref in silent if ref not in ready]
        for ref in ready:
            try:
                get(ref)
            except Diverged as other:
                error = other if other.is_data else error
            except (ActorDied, PeerLost):  # this trainer can't report about its part of the batch
                continue
    return error
