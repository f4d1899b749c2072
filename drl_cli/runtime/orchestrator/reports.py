"""Reports: sends the progress to manage and to the console at regular times, and starts evaluations."""

import dataclasses
import time
from typing import Any

from drl_cli.config.config import Config
from drl_cli.config.exploration import average
from drl_cli.metrics.console import Console
from drl_cli.metrics.status import WARM_UP
from drl_cli.runtime.edges.pool import WorkerPool
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.reanalysis import Reanalysis
from drl_cli.runtime.orchestrator.status_fields import RecentRates, awaited, constant_fields, status_fields, totals
from drl_cli.runtime.place.handles import Ref
from drl_cli.runtime.place.usage import AskedUses
from drl_cli.types import Array, LoadParams
from drl_cli.utils.clock import now
from drl_cli.utils.run_clock import multiple_after

DECISION = 4
"""In mode=single and sync, the run waits if an evaluation still runs after eval_period / DECISION steps."""

COMPILER = "the compiler (later runs reuse its result)"
SHORT_S = 2.0
"""A shorter wait for the compiler is not shown [s]."""

OF_WORKERS = ("rollout/", "perf/env_steps", "perf/updates_per_env_step", "perf/loads", "perf/worker")
OF_DELAYS = ("async/", "replay/dropped_rows", "replay/staleness")


def without_meaning(config: Config) -> tuple[str, ...]:
    """Return the first letters of the tags that measure nothing in this run, and would be zero for ever.

    Only in mode=async, policies lag behind.
    """
    return (
        *(OF_WORKERS if config.is_offline else ()),
        *(() if config.mode == "async" else OF_DELAYS),
        *(() if config.trainer.on_nonfinite == "skip" else ("train/skipped_updates",)),
    )


class Reports:
    """Sends a report at time `next` [s], and starts an evaluation at the position `next_eval`.

    In mode=single and sync, `undecided` is the version whose evaluation may still end the run. At the step at which
    `is_deciding` returns True, the run waits for this evaluation. No evaluation is skipped, so `stop.return` ends
    every repeat of the run at the same step.
    """

    def __init__(
        self,
        config: Config,
        edges: Edges,
        progress: Progress,
        console: Console,
        reanalysis: Reanalysis,
    ) -> None:
        self.edges, self.reanalysis, self.asked = edges, reanalysis, AskedUses()
        self.config, self.pool, self.manage, self.trainers = config, edges.pool, edges.manage, edges.trainers.values()
        self.progress, self.console = progress, console
        self.rates = RecentRates(progress.members)
        self.without_meaning = without_meaning(config)
        self.is_ending = False
        self.running = RunningCollects(config, edges.pool, progress)
        console.update(**constant_fields(config))
        console.measures(lambda: {} if self.is_ending else self.with_compiler(self.running.fields()))
        self.next = now() + config.logger.report_s
        self.next_eval = config.manage.eval_period
        self.undecided: tuple[LoadParams, Ref[Array]] | None = None

    def go_on(self, position: int) -> None:
        self.next_eval = multiple_after(position, self.config.manage.eval_period)

    def send(self, params_header: LoadParams, state: str = "running", is_last: bool = False) -> None:
        """Send a report. The last report, after the last step of training, is shown even if no report is due."""
        self.next = now() + self.config.logger.report_s
        self.take_uses()
        worker_wait_s = self.pool.wait_seconds(now())
        scalars = self.progress.report(worker_wait_s)
        self.rates.members = self.progress.members
        self.rates.totals.append(totals(self.progress, worker_wait_s))
        worker, exploration = self.config.worker, params_header.exploration
        if worker.exploration is not None:
            exploration = average(worker.exploration, exploration, self.config.num_workers, worker.envs)
        scalars |= {f"rollout/{name}": value for name, value in exploration.items()}
        if self.reanalysis.pool.members:
            scalars |= self.reanalysis.scalars()
        scalars = {tag: value for tag, value in scalars.items() if not tag.startswith(self.without_meaning)}
        self.manage.report(scalars, self.progress.position)
        fields = status_fields(self.config, self.progress, self.rates, scalars)
        if self.progress.collect_started is None and self.console.status.env_steps:  # shows the first collect calls
            fields = {name: value for name, value in fields.items() if name not in ("awaits", "done", "needed")}
        awaits = self.console.status.awaits
        if self.is_ending:
            fields |= {"state": "ending", "awaits": "" if is_last else awaits, "left_s": 0.0}
            means = self.progress.mean_rates()  # a short run has no second report, from which a recent rate is known
            fields |= {name: rate for name, rate in means.items() if is_last and fields[name] is None}
        else:
            fields["state"] = "starting" if self.progress.collect_started is None else state
            if self.console.status.awaits_s is not None:  # as the console's thread has found
                fields = self.with_compiler(fields)
        self.console.report(**fields)
        if is_last:
            self.ending(awaits)

    def take_uses(self) -> None:
        """On a cluster, take and ask again what processor time and memory the roles use."""
        if self.edges.is_cluster:  # elsewhere, all processes are descendants of this one
            self.progress.usage.tell(self.asked.take(self.edges.handles()))

    def published(self, params_header: LoadParams, params: Ref[Array]) -> None:
        """Evaluate a new version if an evaluation is due. The last version is evaluated at the end of the run."""
        clock = self.config.clock
        if self.config.has_env and self.next_eval <= clock.of(params_header) < clock.total:
            self.evaluate(params_header, params)

    def evaluate(self, params_header: LoadParams, params: Ref[Array]) -> None:
        self.go_on(self.config.clock.of(params_header))
        if self.config.mode != "async":
            self.undecided = params_header, params
        self.manage.evaluate(params_header, params)

    def is_deciding(self, position: int, next_steps: int) -> bool:
        """Return whether the workers wait for the running evaluation before their next round, of `next_steps` steps."""
        if self.undecided is None:
            return False
        decision = self.config.clock.of(self.undecided[0]) + self.config.manage.eval_period // DECISION
        return position >= decision or position + next_steps >= self.next_eval

    def state(self) -> dict[str, Any]:
        """Return the header of the undecided version for a checkpoint, as json; empty without an undecided version."""
        return {} if self.undecided is None else {"evaluation": dataclasses.asdict(self.undecided[0])}

    def ending(self, awaits: str) -> None:
        self.is_ending = True
        self.console.update(state="ending")
        self.console.awaits(awaits)

    def with_compiler(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the status fields. If a trainer waits for a compiler, they say so, and for how long."""
        since = min(filter(None, (trainer.told().compiler_since for trainer in self.trainers)), default=None)
        if since is not None and (waited := time.time() - since) > SHORT_S:
            return fields | {"awaits": COMPILER, "awaits_s": waited, "done": None, "needed": None, "done_per_s": None}
        return {"awaits": "", "awaits_s": None, **fields} if self.console.status.awaits_s is not None else fields


SLOW_S = 5.0
"""A rollout that takes longer is shown; shorter rollouts would only flicker."""


class RunningCollects:
    """Computes status fields from the steps that the workers tell. The console's thread calls `fields`."""

    def __init__(self, config: Config, pool: WorkerPool, progress: Progress) -> None:
        self.config, self.pool, self.progress = config, pool, progress
        self._first = self._last = (now(), 0)  # time [s] and running steps

    def fields(self) -> dict[str, Any]:
        """Return the fields that count the running steps."""
        steps, moment = self.pool.running_steps(self.progress.finished), now()
        if steps < self._last[1] or self._first[1] == 0:  # a new collect call, or the first steps of this call
            self._first = (moment, steps)
        self._last = (moment, steps)
        fields: dict[str, Any] = {"env_steps": self.progress.env_steps + steps}
        seconds, gained = moment - self._first[0], steps - self._first[1]
        is_first = self.progress.collect_started is None
        missing = self.progress.missing_inserts()
        if not self.config.is_on_policy and not is_first:  # as new as env_steps, unlike the last report
            awaits, done, needed = awaited(self.config, self.progress)
            done = None if done is None or needed is None else min(needed, done + steps)
            fields |= {"awaits": awaits, "done": done, "needed": needed}
        if gained == 0 or not (is_first or seconds > SLOW_S):
            return fields
        if self.config.is_on_policy:
            rollout = self.config.rows_per_collect * self.pool.num_workers
            fields |= {"awaits": "rollout", "done": steps, "needed": rollout}
        elif missing > 0:
            needed = self.config.min_inserts
            fields |= {"awaits": WARM_UP, "done": min(needed, needed - missing + steps), "needed": needed}
        else:
            return fields
        return fields | {"done_per_s": gained / seconds}
