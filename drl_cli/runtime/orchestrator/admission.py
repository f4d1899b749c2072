"""Admission: decides whether the next collect call or train call may be made now."""

from dataclasses import dataclass

from drl_cli.config.config import Config
from drl_cli.runtime.orchestrator.collector import Collector
from drl_cli.runtime.orchestrator.learning import Learning
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter
from drl_cli.runtime.orchestrator.reanalysis import Reanalysis


@dataclass(eq=False)
class Admission:
    """Uses the limiter, the counters and the calls in flight to decide which calls are allowed. Makes no calls."""

    config: Config
    limiter: Limiter
    progress: Progress
    collector: Collector
    learning: Learning
    reanalysis: Reanalysis

    def updates(self) -> int:
        """Return the number of updates that one more train call may make now, or 0 if no call is allowed."""
        if self.learning.training >= (1 if self.config.is_on_policy else 2):
            return 0  # off-policy, replay draws batches for a second call while trainers work on the first
        updates = self.learning.call_updates
        if not self.limiter.free:  # make no updates for steps beyond the end of the run
            updates = min(updates, self._certain_updates())
        return updates if updates > 0 and self.limiter.may_sample(updates) else 0

    def may_collect(self, rows: int) -> bool:
        """Return whether a collect call for this number of environment steps is allowed now."""
        issued = self.collector.issued
        if issued >= self.config.total_env_steps or (self.config.is_on_policy and self.learning.publishing):
            return False
        if self.learning.params is None and issued >= steps_without_params(self.config):
            return False
        if not self.reanalysis.may_collect(rows):
            return False
        if self.limiter.may_collect(rows):
            return True
        # If no update is left at the end of a run, workers must not wait for trainers, even if the band is narrow.
        return self.limiter.may_sample(1) and self._certain_updates() == 0

    def _certain_updates(self) -> int:
        """Return a lower bound on the number of updates left until the end of the run."""
        least = self.config.rows_per_collect
        certain = self.collector.issued - self.collector.uncertain
        certain += -(-max(0, self.config.total_env_steps - certain) // least) * least
        return self.limiter.owed(certain - self.collector.issued)

    def is_over(self) -> bool:
        if self.config.clock.of(self.progress) < self.config.clock.total:
            return False
        if self.learning.training or self.collector.pool.busy or self.collector.arrived:
            return False
        return self.limiter.free or self.limiter.owed() == 0


def steps_without_params(config: Config) -> int:
    """Return the number of random steps before parameters arrive in mode=async. 0 if every row needs the policy."""
    needs_params = config.is_on_policy or config.replay.worker_priorities or config.network.memory != "none"
    return config.random_steps if config.mode == "async" and not needs_params else 0
