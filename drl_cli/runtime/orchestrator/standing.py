"""Standing: what a run's status says of it, from its counters."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.runtime.config import Config
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.recent import Recent
from drl_cli.utils.cores import num_cores


def constants(config: Config) -> dict[str, Any]:  # Any: fields of Status
    """What does not change while the run lasts."""
    is_held = config.orchestrator.limiter == "ratio" and not config.is_on_policy
    return {
        "total_env_steps": config.total_env_steps,
        "goal": config.stop.return_,
        "ratio_asked": config.orchestrator.sample_insert_ratio if is_held else None,
        "replay_capacity": config.replay.capacity,
        "mode": config.mode,
        "is_on_policy": config.is_on_policy,
        "workers": config.num_workers,
        "compiles": config.trainer.compile,
        "cpus": num_cores(),
    }


def standing(config: Config, progress: Progress, recent: Recent, scalars: Mapping[str, float]) -> dict[str, Any]:
    """How far the run is, what it has learned, where its time goes; `scalars` are those of the report made now."""
    what, done, needed = awaited(config, progress)
    returns, lengths = zip(*progress.latest, strict=True) if progress.latest else ((), ())
    best = progress.best
    trained = {tag.removeprefix("train/"): value for tag, value in scalars.items() if tag.startswith("train/")}
    losses = {name: value for name, value in trained.items() if name != "skipped_updates" and math.isfinite(value)}
    fields = {
        "started": progress.started - progress.wall_before_s,
        "awaits": what,
        "done": done,
        "needed": needed,
        "left_s": left_s(config, progress, recent),
        "env_steps": progress.env_steps,
        "opt_steps": progress.opt_steps,
        "episodes": progress.num_episodes,
        "train_return": float(np.mean(returns)) if returns else None,
        "train_length": float(np.mean(lengths)) if lengths else None,
        "train_episodes": len(returns),
        "scores": tuple(progress.scores),
        "best": best and (best.params_header.env_steps, best.mean),
        "env_steps_per_s": recent.env_steps_per_s(),
        "opt_steps_per_s": recent.opt_steps_per_s(),
        "ratio": progress.updates_per_env_step(),
        "worker_time": recent.worker_time(),
        "trainer_time": recent.trainer_time(),
        "roles": progress.usage.now(),
        "cpu_percent": scalars["system/cpu_percent"],
        "replay_size": int(scalars["replay/size"]),
    }
    if losses:  # else no update was made since the last report, and the losses are what they were
        fields["losses"] = losses
    if "async/policy_lag" in scalars:
        fields["policy_lag"] = scalars["async/policy_lag"]
    return fields


def awaited(config: Config, progress: Progress) -> tuple[str, int | None, int | None]:
    """What the run waits for, how much of that is there, and how much is needed."""
    if progress.collect_started is None:
        return "the first steps of the workers", None, None
    missing = progress.missing_inserts()
    if missing > 0:
        return "warm-up", config.orchestrator.min_inserts - missing, config.orchestrator.min_inserts
    if progress.train_started is None:
        return "the first update", None, None
    return "", None, None


def left_s(config: Config, progress: Progress, recent: Recent) -> float | None:
    """Seconds until total_env_steps at the present pace, or until stop.wall_s; None where there is no pace."""
    pace, limit = recent.env_steps_per_s(), config.stop.wall_s
    left = [] if limit is None else [max(0.0, limit - progress.process_s())]
    if pace:
        left.append(max(0, config.total_env_steps - progress.env_steps) / pace)
    return min(left, default=None)
