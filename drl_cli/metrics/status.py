"""Status: how a run goes at one moment. The console shows it, and drl-watch reads it from the run's folder."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"
MOST_SCORES = 60
"""Evaluations that a status keeps, the newest."""


@dataclass(frozen=True)
class Status:
    """None, or an empty mapping, stands for what is not known (yet).

    `state` is starting, running, paused or ending, and at the end what run.json says, or killed. `note` is what those
    have to add who look at the run. `awaits` names what is waited for, `done` of `needed` of it are there.

    Times are in seconds, `started` and `written` since the epoch; a run that was resumed counts as `started` that much
    earlier as it had lasted before. `left_s` is what remains at the present pace until total_env_steps or stop.wall_s.

    `scores` are (env_steps, mean return) of the evaluations, oldest first. `train_return` and `train_length` are means
    over the last `train_episodes` episodes of training. `ratio` is updates per environment step, `ratio_asked` is None
    where nothing holds it. `worker_time` (environment, policy, rows, waiting) and `trainer_time` (batch, update,
    waiting) are shares of the last reports' time. `roles` has by kind of role how many `processes` there are, the
    `cores` that they use and their memory `rss_mb`; `cpu_percent` is of the whole machine.
    """

    run_id: str = ""
    title: str = ""
    host: str = ""
    pid: int = 0
    state: str = "starting"
    note: str = ""
    awaits: str = ""
    done: int | None = None
    needed: int | None = None
    started: float = 0.0
    written: float = 0.0
    wall_s: float = 0.0
    left_s: float | None = None
    env_steps: int = 0
    total_env_steps: int = 0
    opt_steps: int = 0
    episodes: int = 0
    train_return: float | None = None
    train_length: float | None = None
    train_episodes: int = 0
    scores: tuple[tuple[int, float], ...] = ()
    best: tuple[int, float] | None = None
    goal: float | None = None
    env_steps_per_s: float | None = None
    opt_steps_per_s: float | None = None
    ratio: float | None = None
    ratio_asked: float | None = None
    policy_lag: float | None = None
    worker_time: Mapping[str, float] = field(default_factory=dict)
    trainer_time: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    cpu_percent: float | None = None
    cpus: int = 1
    replay_size: int = 0
    replay_capacity: int = 0
    mode: str = "async"
    is_on_policy: bool = False
    workers: int = 1
    compiles: bool = False

    @property
    def is_over(self) -> bool:
        """Whether there will be no newer status."""
        return self.state not in ("starting", "running", "paused", "ending")

    def age_s(self, moment: float) -> float:
        """How long the run has lasted at this moment [s since the epoch]; at its last report when it is over."""
        return self.wall_s if self.is_over else max(0.0, moment - self.started)

    @property
    def share(self) -> float:
        """How much of total_env_steps is done, from 0 to 1; the last hand-over may go beyond."""
        return min(1.0, self.env_steps / max(1, self.total_env_steps))

    @property
    def awaited(self) -> str:
        """What is waited for, with how much of it is there."""
        count = "" if self.needed is None else f" {self.done or 0:,}/{self.needed:,}"
        return f"{self.awaits}{count}" if self.awaits else ""

    def evaluated(self, env_steps: int, mean: float) -> "Status":
        """The status with one more evaluation, unless its mean is not finite."""
        if not math.isfinite(mean):
            return self
        best = self.best if self.best is not None and self.best[1] >= mean else (env_steps, mean)
        return dataclasses.replace(self, scores=(*self.scores, (env_steps, mean))[-MOST_SCORES:], best=best)

    def json(self) -> dict[str, Any]:  # Any: json
        """All fields; a number that is not finite is None."""
        plain: dict[str, Any] = finite(dataclasses.asdict(self))
        return plain

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Status":  # Any: json
        """The status that `json` took apart; what another version of this package wrote beside it is left out."""
        known = {f.name: fields[f.name] for f in dataclasses.fields(cls) if f.name in fields}
        for name in ("worker_time", "trainer_time", "losses"):
            known[name] = {key: value for key, value in known.get(name, {}).items() if value is not None}
        known["scores"] = tuple((steps, mean) for steps, mean in known.get("scores", ()) if mean is not None)
        known["best"] = tuple(known["best"]) if known.get("best") else None
        return cls(**known)

    def write(self, folder: Path) -> None:
        """Replace the status in a run's folder, in one piece. Not synced: after a power cut nobody watches."""
        draft = folder / f".{STATUS_FILE}.{os.getpid()}"
        draft.write_text(json.dumps(self.json()))
        os.replace(draft, folder / STATUS_FILE)

    @classmethod
    def read(cls, folder: Path) -> "Status | None":
        """The newest status of a run; None where there is none that can be read."""
        try:
            return cls.of(json.loads((folder / STATUS_FILE).read_text()))
        except (OSError, ValueError, TypeError, AttributeError):
            return None


def finite(value: Any) -> Any:  # Any: json
    """Plain data as json can have it: None for NaN and infinities, lists for tuples."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
