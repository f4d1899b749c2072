"""Reports: tells manage and the console how the run goes, by the clock, and has new versions evaluated."""

from collections.abc import Mapping

from drl_cli.metrics.console import Console
from drl_cli.optim.schedules import multiple_after
from drl_cli.runtime.config import Config
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.recent import Recent
from drl_cli.runtime.orchestrator.standing import constants, standing
from drl_cli.runtime.place.handles import Ref
from drl_cli.runtime.roles.exploration import average
from drl_cli.utils.clock import now


class Reports:
    """The next report is due at `next` [s, as `now` has it], the next evaluation at `next_eval` environment steps."""

    def __init__(self, config: Config, edges: Edges, progress: Progress, console: Console, calls: Calls) -> None:
        self.config, self.pool, self.manage = config, edges.pool, edges.manage
        self.progress, self.console, self.calls = progress, console, calls
        self.recent = Recent(config.num_proxies or config.num_workers)
        self.is_ending = False
        console.update(**constants(config))
        self.next = now() + config.logger.report_s
        self.next_eval = config.manage.eval_period

    def go_on(self, env_steps: int) -> None:
        """Have the next evaluation at the first multiple of eval_period after these environment steps."""
        self.next_eval = multiple_after(env_steps, self.config.manage.eval_period)

    def send(self, params_header: LoadParams, state: str = "running") -> None:
        """Send a report now, and the next after logger.report_s."""
        self.next = now() + self.config.logger.report_s
        worker_wait_s = self.worker_wait_s()
        scalars = self.progress.report(worker_wait_s)
        self.recent.add(self.progress.totals(worker_wait_s))
        worker, num = self.config.worker, self.config.num_workers
        exploration = average(worker.exploration, params_header.exploration, num, worker.envs)
        scalars |= {f"rollout/{name}": value for name, value in exploration.items()}
        calls = self.calls.in_flight
        scalars |= {f"perf/calls_in_flight/{role.replace(' ', '_')}": float(calls[role]) for role in calls}
        self.manage.report(scalars, self.progress.env_steps)
        self.manage.used(self.progress.usage.tell)
        self._show(scalars, state)

    def published(self, params_header: LoadParams, params: Ref) -> None:
        """Have a new version evaluated when it is time; the last is evaluated at the end anyway."""
        if self.next_eval <= params_header.env_steps < self.config.total_env_steps:
            self.go_on(params_header.env_steps)
            self.manage.evaluate(params_header, params)

    def evaluated(self, report: EvalReport) -> None:
        """Say what an evaluation found; manage has written it down."""
        self.console.evaluation(report.statistics, report.params_header.env_steps, report.is_best)

    def ending(self, awaits: str) -> None:
        """Collecting and training are over: only this is still waited for."""
        self.is_ending = True
        self.console.update(state="ending")
        self.console.awaits(awaits)

    def _show(self, scalars: Mapping[str, float], state: str) -> None:
        fields = standing(self.config, self.progress, self.recent, scalars)
        if self.is_ending:
            fields = {**fields, "state": "ending", "awaits": self.console.status.awaits, "left_s": 0.0}
        else:
            fields["state"] = "starting" if self.progress.collect_started is None else state
        self.console.report(**fields)

    def worker_wait_s(self) -> float:
        """Seconds that workers had nothing to do, summed over them."""
        return self.pool.wait_seconds(self.progress.ended or now())
