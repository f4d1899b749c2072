"""Show the steps of running collect calls. A collect call of a slow environment can take minutes."""

from typing import Any

from drl_cli.runtime.config import Config
from drl_cli.runtime.edges.worker_pool import WorkerPool
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.status_fields import awaited
from drl_cli.utils.clock import now

SLOW_S = 5.0
"""A rollout that takes longer is shown; shorter rollouts would only flicker."""


class RunningCollects:
    """Computes status fields from the steps that the workers tell. The console's thread calls `fields`."""

    def __init__(self, config: Config, pool: WorkerPool, progress: Progress) -> None:
        self.config, self.pool, self.progress = config, pool, progress
        self._first = self._last = (now(), 0)  # time [s] and running steps

    def fields(self) -> dict[str, Any]:
        """Return the fields that count the running steps."""
        steps, moment = self.pool.running_steps(), now()
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
            fields |= {"awaits": "warm-up", "done": min(needed, needed - missing + steps), "needed": needed}
        else:
            return fields
        return fields | {"done_per_s": gained / seconds}
