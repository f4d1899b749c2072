"""Pace: which call may be made next, by the limiter, the parameters that there are, and the end of the run."""

from drl_cli.runtime.config import Config
from drl_cli.runtime.orchestrator.hand_over import HandOver
from drl_cli.runtime.orchestrator.learning import Learning
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter


class Pace:
    """It answers, and issues nothing. `prefetch` train calls may be in flight: the next batch is drawn meanwhile."""

    def __init__(
        self, config: Config, limiter: Limiter, progress: Progress, hand_over: HandOver, learning: Learning
    ) -> None:
        self.config, self.limiter, self.progress = config, limiter, progress
        self.hand_over, self.learning = hand_over, learning
        self.prefetch = 1 if config.is_on_policy else 2

    def updates(self) -> int:
        """Updates that one more train call may make now; 0: there may be none."""
        if self.learning.training >= self.prefetch:
            return 0
        updates, draining = self.learning.call_updates, self.hand_over.issued >= self.config.total_env_steps
        if draining and not self.limiter.free:
            updates = min(updates, self.limiter.owed())
        return updates if updates > 0 and self.limiter.may_sample(updates) else 0

    def may_collect(self) -> bool:
        """Whether one more collect may start; on-policy not with parameters that are being replaced right now.

        Workers begin at random while the trainer starts, which takes longer.
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
