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

        Trainers may be ahead of the workers (orchestrator.band), but not of the steps that the run will surely take.
        """
        if self.learning.training >= self.prefetch:
            return 0
        updates = self.learning.call_updates
        if not self.limiter.free:
            updates = min(updates, self._sure_updates())
        return updates if updates > 0 and self.limiter.may_sample(updates) else 0

    def may_collect(self) -> bool:
        """Whether one more collect may start.

        On-policy, not while a new version is under way. Before the first version, only as far as workers act at random.
        Where a narrow band has workers wait for trainers that would be ahead of the run's end, workers go on.
        """
        issued = self.hand_over.issued
        if issued >= self.config.total_env_steps or (self.config.is_on_policy and self.learning.publishing):
            return False
        if self.learning.params is None and issued >= self.config.steps_without_params:
            return False
        if self.limiter.may_collect(self.hand_over.rows):
            return True
        return self.limiter.may_sample(1) and self._sure_updates() == 0

    def _sure_updates(self) -> int:
        """Updates, not made yet, that are paid for by the steps that the run will have taken at least.

        A collect of a proxy, counted as one of all its workers while it is under way, may come back with one's steps.
        """
        least = self.config.rows_per_collect
        under_way = len(self.hand_over.pool.busy) + len(self.hand_over.arrived)
        sure = self.hand_over.issued - under_way * (self.hand_over.rows - least)
        sure += -(-max(0, self.config.total_env_steps - sure) // least) * least
        return self.limiter.owed(sure - self.hand_over.issued)

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
