"""Recent: rates, and where the time of workers and trainer went, over the last reports."""

from collections import deque
from dataclasses import astuple, dataclass

WINDOW = 10
"""Reports that count: with few, a hand-over more or less would change a rate by half."""


@dataclass(frozen=True)
class Totals:
    """What had been done and waited for until a `moment` [s], all counted from the run's beginning.

    `worker_wait_s` is summed over the members of the pool, `work_s` and its parts `env_s` and `policy_s` over the
    workers; `update_s` is a part of the time that the trainer did not wait.
    """

    moment: float
    env_steps: int
    opt_steps: int
    worker_wait_s: float
    work_s: float
    env_s: float
    policy_s: float
    trainer_wait_s: float
    update_s: float


class Recent:
    """`members` are workers, or the proxies that stand for them."""

    def __init__(self, members: int) -> None:
        self.members = members
        self._totals: deque[Totals] = deque(maxlen=WINDOW + 1)
        self._gone = Totals(0.0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def add(self, totals: Totals) -> None:
        """A report is made now."""
        self._totals.append(totals)
        first = astuple(self._totals[0])
        self._gone = Totals(*(now - before for now, before in zip(astuple(totals), first, strict=True)))

    def env_steps_per_s(self) -> float | None:
        """Environment steps per second; None before the second report."""
        return self._gone.env_steps / self._gone.moment if self._gone.moment > 0 else None

    def opt_steps_per_s(self) -> float | None:
        """Updates per second."""
        return self._gone.opt_steps / self._gone.moment if self._gone.moment > 0 else None

    def worker_time(self) -> dict[str, float]:
        """Shares of the workers' time; empty as long as none has handed over.

        What a worker works on is only known when it hands over: its parts are those of the last hand-overs.
        """
        gone = self._gone
        if gone.moment <= 0 or gone.work_s <= 0:
            return {}
        waiting = min(1.0, gone.worker_wait_s / (gone.moment * self.members))
        environment, policy = ((1 - waiting) * part / gone.work_s for part in (gone.env_s, gone.policy_s))
        rows = max(0.0, 1 - waiting - environment - policy)
        return {"environment": environment, "policy": policy, "rows": rows, "waiting": waiting}

    def trainer_time(self) -> dict[str, float]:
        """Shares of the trainer's time; empty before the first update.

        What it neither waits nor updates, its batches are drawn, sent and made ready.
        """
        gone = self._gone
        if gone.moment <= 0 or gone.update_s <= 0:
            return {}
        waiting = min(1.0, gone.trainer_wait_s / gone.moment)
        update = min(1 - waiting, gone.update_s / gone.moment)
        return {"batch": 1 - waiting - update, "update": update, "waiting": waiting}
