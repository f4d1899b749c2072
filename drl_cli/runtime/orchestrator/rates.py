"""RecentRates: steps per second, and how workers and trainer spent their time, over the last reports."""

from collections import deque
from dataclasses import astuple, dataclass

WINDOW = 10
"""Reports that the rates cover; over fewer, a single block would change a rate by half."""


@dataclass(frozen=True)
class Totals:
    """Counts and times [s] from the beginning of the run until `moment`.

    `worker_wait_s` is a sum over the members of the pool; `work_s` and its parts `env_s` and `policy_s` are sums over
    the workers. `update_s` is the time that the trainer spent on updates.
    """

    moment: float = 0.0
    env_steps: int = 0
    opt_steps: int = 0
    worker_wait_s: float = 0.0
    work_s: float = 0.0
    env_s: float = 0.0
    policy_s: float = 0.0
    trainer_wait_s: float = 0.0
    update_s: float = 0.0


class RecentRates:
    """Compares the newest totals with those of WINDOW reports ago; `members` are workers or proxies."""

    def __init__(self, members: int) -> None:
        self.members = members
        self._totals: deque[Totals] = deque(maxlen=WINDOW + 1)
        self._change = Totals()

    def add(self, totals: Totals) -> None:
        """Add the totals of a new report."""
        self._totals.append(totals)
        first = astuple(self._totals[0])
        self._change = Totals(*(now - before for now, before in zip(astuple(totals), first, strict=True)))

    def env_steps_per_s(self) -> float | None:
        """Return the environment steps per second, None before the second report."""
        return self._change.env_steps / self._change.moment if self._change.moment > 0 else None

    def opt_steps_per_s(self) -> float | None:
        """Return the updates per second, None before the second report."""
        return self._change.opt_steps / self._change.moment if self._change.moment > 0 else None

    def worker_time(self) -> dict[str, float]:
        """Return the shares of the workers' time by activity, empty before the first block.

        A worker reports its times with each block, so the shares follow from the blocks of the window.
        """
        change = self._change
        if change.moment <= 0 or change.work_s <= 0:
            return {}
        waiting = min(1.0, change.worker_wait_s / (change.moment * self.members))
        environment, policy = ((1 - waiting) * part / change.work_s for part in (change.env_s, change.policy_s))
        rows = max(0.0, 1 - waiting - environment - policy)
        return {"environment": environment, "policy": policy, "rows": rows, "waiting": waiting}

    def trainer_time(self) -> dict[str, float]:
        """Return the shares of the trainer's time by activity, empty before the first update.

        The time that is neither waiting nor updating goes into drawing, sending and preparing batches.
        """
        change = self._change
        if change.moment <= 0 or change.update_s <= 0:
            return {}
        waiting = min(1.0, change.trainer_wait_s / change.moment)
        update = min(1 - waiting, change.update_s / change.moment)
        return {"batch": 1 - waiting - update, "update": update, "waiting": waiting}
