"""Status fields: computes the values of `metrics.status.Status` from a run's counters."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from drl_cli.config.config import Config
from drl_cli.metrics.status import WARM_UP
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.utils.clock import now
from drl_cli.utils.machine import num_cores

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


def totals(progress: Progress, worker_wait_s: float) -> Totals:
    """Return counts and times so far. The trainer's time before its first update counts as waiting."""
    moment = progress.ended or now()
    trainer_wait = progress.trainer_idle.seconds(moment) + (progress.train_started or moment) - progress.began
    counts, work = (progress.env_steps, progress.opt_steps), (progress.work_s, progress.env_s, progress.policy_s)
    return Totals(moment, *counts, worker_wait_s, *work, trainer_wait, progress.update_s)


class RecentRates:
    """Computes rates from the newest totals and the totals WINDOW reports ago. `members` counts workers or proxies."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.totals: deque[Totals] = deque(maxlen=WINDOW + 1)

    def fields(self) -> dict[str, Any]:
        """Return the status fields: steps per second (None before the second report) and fractions of time.

        `batch` means drawing, sending and preparing batches. `training_env_steps_per_s` counts from the first update,
        because workers are much faster without updates. It is None before the second report with updates.
        """
        fields: dict[str, Any] = {
            "env_steps_per_s": None,
            "opt_steps_per_s": None,
            "training_env_steps_per_s": None,
            "worker_time": {},
            "trainer_time": {},
        }
        if not self.totals or self.totals[-1].moment <= self.totals[0].moment:
            return fields
        trained = [each for each in self.totals if each.update_s > 0]
        if trained and (seconds := trained[-1].moment - trained[0].moment) > 0:
            fields["training_env_steps_per_s"] = (trained[-1].env_steps - trained[0].env_steps) / seconds
        first, last = (astuple(self.totals[i]) for i in (0, -1))
        change = Totals(*(after - before for after, before in zip(last, first, strict=True)))
        fields["env_steps_per_s"] = change.env_steps / change.moment
        fields["opt_steps_per_s"] = change.opt_steps / change.moment
        if change.work_s > 0:
            waiting = min(1.0, change.worker_wait_s / (change.moment * self.members))
            environment, policy = ((1 - waiting) * part / change.work_s for part in (change.env_s, change.policy_s))
            rows = max(0.0, 1 - waiting - environment - policy)
            fields["worker_time"] = {"environment": environment, "policy": policy, "rows": rows, "waiting": waiting}
        if change.update_s > 0:
            waiting = min(1.0, change.trainer_wait_s / change.moment)
            # A call counts when it ends, with all its seconds.
            update = min(1 - waiting, change.update_s / change.moment)
            fields["trainer_time"] = {"batch": 1 - waiting - update, "update": update, "waiting": waiting}
        return fields


def constant_fields(config: Config) -> dict[str, Any]:  # Any: fields of Status
    """Return the status fields that do not change during the run."""
    holds_ratio = config.orchestrator.limiter == "ratio" and not (config.is_on_policy or config.is_offline)
    is_on_gpu = config.device.startswith("cuda")  # where updates are only compiled with trainer.compile=true
    return {
        "total_env_steps": config.total_env_steps,
        "total_updates": config.total_updates if config.is_offline else None,
        "goal": config.stop.return_,
        "ratio_asked": config.orchestrator.sample_insert_ratio if holds_ratio else None,
        "reanalyzed_asked": config.reanalyzer.ratio if config.reanalyzer.num else None,
        "replay_capacity": config.replay.capacity,
        "mode": config.mode,
        "is_on_policy": config.is_on_policy,
        "workers": config.num_workers,
        "compiles": config.trainer.compile is True or (config.trainer.compile is not False and not is_on_gpu),
        "cpus": num_cores(),
    }


def status_fields(
    config: Config, progress: Progress, rates: RecentRates, scalars: Mapping[str, float]
) -> dict[str, Any]:
    """Return the status fields that change during the run. `scalars` is the present report."""
    awaits, done, needed = awaited(config, progress)
    returns, lengths = zip(*progress.latest, strict=True) if progress.latest else ((), ())
    best, speeds = progress.best, rates.fields()
    roles, nodes = progress.usage.now()
    has_updates = config.num_updates > 0  # a run that only collects has none
    training_env_steps_per_s = speeds.pop("training_env_steps_per_s")
    env_steps_per_s = training_env_steps_per_s if has_updates else speeds["env_steps_per_s"]
    trained = {tag.removeprefix("train/"): value for tag, value in scalars.items() if tag.startswith("train/")}
    losses = {name: value for name, value in trained.items() if name != "skipped_updates" and math.isfinite(value)}
    fields = {
        "started": progress.started - progress.wall_before_s,
        "awaits": awaits,
        "done": done,
        "needed": needed,
        "left_s": left_s(config, progress, speeds["opt_steps_per_s"] if config.is_offline else env_steps_per_s),
        "env_steps": progress.env_steps,
        "opt_steps": progress.opt_steps,
        "episodes": progress.num_episodes,
        "train_return": float(np.mean(returns)) if returns else None,
        "train_length": float(np.mean(lengths)) if lengths else None,
        "train_episodes": len(returns),
        "scores": tuple(progress.scores),
        "best": best and (best.params_header.env_steps, best.mean),
        "reanalyzed": scalars.get("perf/reanalyzed_per_transition"),
        "ratio": progress.updates_per_env_step(),
        **speeds,
        "workers": progress.workers,
        "roles": roles,
        "nodes": nodes,
        "cpu_percent": scalars["system/cpu_percent"],
        "replay_size": int(scalars["replay/size"]),
    }
    if losses:  # if there are no new losses, the status keeps the old losses
        fields["losses"] = losses
    if "async/policy_lag" in scalars:
        fields["policy_lag"] = scalars["async/policy_lag"]
    return fields


def awaited(config: Config, progress: Progress) -> tuple[str, int | None, int | None]:
    """Return what the run waits for before its first update, and how many items are present and needed."""
    if config.is_offline and progress.train_started is None:
        return "the dataset", progress.inserts, None
    if progress.collect_started is None:
        return "the first steps of the workers", None, None
    missing = progress.missing_inserts()
    if missing > 0:
        return WARM_UP, config.min_inserts - missing, config.min_inserts
    return "the first update" if progress.train_started is None else "", None, None


def left_s(config: Config, progress: Progress, per_s: float | None) -> float | None:
    """Return the seconds left until the end of the run or stop.wall_s, whichever is first. None if this is unknown.

    `per_s` is the speed of the run's clock.
    """
    limit = config.stop.wall_s
    left = [] if limit is None else [max(0.0, limit - progress.process_s())]
    if per_s:
        left.append(max(0, config.clock.total - progress.position) / per_s)
    return min(left, default=None)
