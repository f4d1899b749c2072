"""Status fields: computes the values of `metrics.status.Status` from a run's counters."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.metrics.status import WARM_UP
from drl_cli.runtime.config import Config
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rates import RecentRates
from drl_cli.utils.machine import num_cores


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
    has_updates = config.num_updates > 0  # a run that only collects has none
    env_steps_per_s = rates.training_env_steps_per_s() if has_updates else speeds["env_steps_per_s"]
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
        "roles": progress.usage.now(),
        "nodes": progress.usage.now_by_node(),
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
