"""Reports: tells manage and the console how the run goes, by the clock, and has new versions evaluated."""

from drl_cli.metrics.console import Console
from drl_cli.runtime.config import Config
from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.place.handles import Ref
from drl_cli.runtime.roles.exploration import average
from drl_cli.utils.clock import now
from drl_cli.utils.schedules import multiple_after


class Reports:
    """The next report is due at `next` [s, as `now` has it], the next evaluation at `next_eval` environment steps."""

    def __init__(self, config: Config, edges: Edges, progress: Progress, console: Console, calls: Calls) -> None:
        self.config, self.pool, self.manage = config, edges.pool, edges.manage
        self.progress, self.console, self.calls = progress, console, calls
        self.next = now() + config.logger.report_s
        self.next_eval = config.manage.eval_period

    def go_on(self, env_steps: int) -> None:
        """Have the next evaluation at the first multiple of eval_period after these environment steps."""
        self.next_eval = multiple_after(env_steps, self.config.manage.eval_period)

    def send(self, params_header: LoadParams) -> None:
        """Send a report now, and the next after logger.report_s."""
        self.next = now() + self.config.logger.report_s
        scalars = self.progress.report(self.worker_wait_s())
        exploration = average(self.config.worker.exploration, params_header.exploration, self.config.num_workers)
        scalars |= {f"rollout/{name}": value for name, value in exploration.items()}
        calls = self.calls.in_flight
        scalars |= {f"perf/calls_in_flight/{role.replace(' ', '_')}": float(calls[role]) for role in calls}
        self.manage.report(scalars, self.progress.env_steps)
        self.console.report(scalars, self.progress.env_steps)

    def published(self, params_header: LoadParams, params: Ref) -> None:
        """Have a new version evaluated when it is time; the last is evaluated at the end anyway."""
        if self.next_eval <= params_header.env_steps < self.config.total_env_steps:
            self.go_on(params_header.env_steps)
            self.manage.evaluate(params_header, params)

    def evaluated(self, report: EvalReport) -> None:
        """Say what an evaluation found; manage has written it down."""
        self.console.evaluation(report.statistics, report.params_header.env_steps, report.is_best)

    def worker_wait_s(self) -> float:
        """Seconds that workers had nothing to do, summed over them."""
        return self.pool.wait_seconds(self.progress.ended or now())
