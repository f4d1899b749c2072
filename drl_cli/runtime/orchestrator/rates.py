"""RecentRates: steps per second, and the fractions of time that workers and trainer spent on each task."""

from collections import deque
from dataclasses import astuple, dataclass
from typing import Any

WINDOW = 10
"""Number of reports that the rates cover. With fewer reports, a single block could change a rate by half."""


@dataclass(frozen=True)
class Totals:
    """Counts and times [s] of the run until `moment`. The times of workers are summed over the workers."""

    moment: float = 0.0
    env_steps: int = 0
    opt_steps: int = 0
    worker_wait_s: float = 0.0
    work_s: float = 0.0  # includes env_s and policy_s
    env_s: float = 0.0
    policy_s: float = 0.0
    trainer_wait_s: float = 0.0
    update_s: float = 0.0


class RecentRates:
    """Computes rates from the newest totals and the totals WINDOW reports ago. `members` counts workers or proxies."""

    def __init__(self, members: int) -> None:
        self.members = members
        self._totals: deque[Totals] = deque(maxlen=WINDOW + 1)

    def add(self, totals: Totals) -> None:
        self._totals.append(totals)

    def fields(self) -> dict[str, Any]:
        """Return the status fields: steps per second (None before the second report) and fractions of time.

        `batch` means drawing, sending and preparing batches.
        """
        fields: dict[str, Any] = {
            "env_steps_per_s": None,
            "opt_steps_per_s": None,
            "worker_time": {},
            "trainer_time": {},
        }
        if not self._totals or self._totals[-1].moment <= self._totals[0].moment:
            return fields
        first, last = (astuple(self._totals[i]) for i in (0, -1))
        change = Totals(*(now - before for now, before in zip(last, first, strict=True)))
        fields["env_steps_per_s"] = change.env_steps / change.moment
        fields["opt_steps_per_s"] = change.opt_steps / change.moment
        if change.work_s > 0:
            waiting = min(1.0, change.worker_wait_s / (change.moment * self.members))
            environment, policy = ((1 - waiting) * part / change.work_s for part in (change.env_s, change.policy_s))
            rows = max(0.0, 1 - waiting - environment - policy)
            fields["worker_time"] = {"environment": environment, "policy": policy, "rows": rows, "waiting": waiting}
        if change.update_s > 0:
            waiting = min(1.0, change.trainer_wait_s / change.moment)
            update = min(
                1 - waiting, change.update_s / change.moment
            )  # a call counts when it ends, with all its seconds
            fields["trainer_time"] = {"batch": 1 - waiting - update, "update": update, "waiting": waiting}
        return fields

    def training_env_steps_per_s(self) -> float | None:
        """Return the environment steps per second since the first update, None before the second report with updates.

        The warm-up is left out: workers are much faster without updates.
        """
        totals = [each for each in self._totals if each.update_s > 0]
        if not totals or (seconds := totals[-1].moment - totals[0].moment) <= 0:
            return None
        return (totals[-1].env_steps - totals[0].env_steps) / seconds
