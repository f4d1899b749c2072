"""Pace: whether the next collect or train call may be made now."""

from drl_cli.runtime.config import Config
from drl_cli.runtime.orchestrator.hand_over import HandOver
from drl_cli.runtime.orchestrator.learning import Learning
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter


class Pace:
    """Asks the limiter, whether there are parameters, and how far the run is; makes no call itself.

    Up to `prefetch` train calls may be under way, so that the next batch is drawn while the trainers still update.
    """

    def __init__(
        self, config: Config, limiter: Limiter, progress: Progress, hand_over: HandOver, learning: Learning
    ) -> None:
        self.config, self.limiter, self.progress = config, limiter, progress
        self.hand_over, self.learning = hand_over, learning
        self.prefetch = 1 if config.is_on_policy else 2

    def updates(self) -> int:
        """Updates that one more train call may make now; 0: there may be none.

        Trainers may be ahead of the workers (orchestrator.band), but not of all the steps that the run will take; only
        by one update, where the band is so narrow that workers wait for it.
        """
        if self.learning.training >= self.prefetch:
            return 0
        updates, rows = self.learning.call_updates, self.hand_over.rows
        calls_left = -(-max(0, self.config.total_env_steps - self.hand_over.issued) // rows)
        if not self.limiter.free:
            is_waited_for = calls_left > 0 and not self.limiter.may_collect(rows)
            updates = min(updates, max(self.limiter.owed(calls_left * rows), int(is_waited_for)))
        return updates if updates > 0 and self.limiter.may_sample(updates) else 0

    def may_collect(self) -> bool:
        """Whether one more collect may start.

        On-policy, not while a new version is under way. Before the first version, only as far as workers act at random.
        """
        issued = self.hand_over.issued
        if issued >= self.config.total_env_steps or (self.config.is_on_policy and self.learning.publishing):
            return False
        if self.learning.params is None and issued >= self.config.steps_without_params:
            return False
        return self.limiter.may_collect(self.hand_over.rows)

    def is_random(self) -> bool:
        """Whether the next collect acts at random."""
        return self.hand_over.issued < self.config.random_steps

    def is_over(self) -> bool:
        """Whether all steps were taken, and all updates that they pay for."""
        if self.progress.env_steps < self.config.total_env_steps:
            return False
        if self.learning.training or self.hand_over.pool.busy or self.hand_over.arrived:
            return False
        return self.limiter.free or self.limiter.owed() == 0
