"""Status: the state of a run at one moment. The console shows it, and drl-watch reads it from a file."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drl_cli.utils.files import read_file, replace_file

STATUS_FILE = "status.json"
WARM_UP = "warm-up"
"""What a run waits for until replay has enough rows for the first update."""
MAX_SCORES = 60
"""Maximum number of evaluations in a status; older evaluations are dropped."""


@dataclass(frozen=True)
class Status:
    """The state of a run. An unknown value is None or an empty mapping.

    `state` is starting, running, paused, ending, killed, or the final status in run.json. `note` is a remark from
    drl-watch. `awaits` names what the run is waiting for, and `awaits_s` is the length of this wait [s]; `done` of
    `needed` items are complete. `started` and `written` are in seconds since the epoch. For a resumed run, `started` is
    moved back by the duration of the earlier part. `left_s` is the expected time until the end of the run or
    stop.wall_s is reached.

    A run without workers has `total_updates`, and its `position` counts updates.

    `scores` are pairs (position, mean return) of evaluations, the oldest first. `doubt` is a line if the run does not
    learn. `train_return` and `train_length` are means over the last `train_episodes` training episodes. `ratio` is the
    number of updates per environment step, and `ratio_asked` is its target or None. `reanalyzed` and `reanalyzed_asked`
    are the same for the steps that re-analysers searched again per transition. `worker_time` (environment, policy,
    rows, waiting) and `trainer_time` (batch, update, waiting) are fractions of time in the last reports. `roles` maps
    each kind of role to its number of `processes`, the processor `cores` in use and the memory `rss_mb`, summed over
    all nodes; `nodes` has the same for each host. `cpu_percent` is the load of the whole machine.
    """

    run_id: str = ""
    title: str = ""
    host: str = ""
    pid: int = 0
    state: str = "starting"
    note: str = ""
    awaits: str = ""
    awaits_s: float | None = None
    done: int | None = None
    needed: int | None = None
    done_per_s: float | None = None
    started: float = 0.0
    written: float = 0.0
    wall_s: float = 0.0
    left_s: float | None = None
    env_steps: int = 0
    total_env_steps: int = 0
    opt_steps: int = 0
    total_updates: int | None = None
    episodes: int = 0
    train_return: float | None = None
    train_length: float | None = None
    train_episodes: int = 0
    scores: tuple[tuple[int, float], ...] = ()
    best: tuple[int, float] | None = None
    goal: float | None = None
    doubt: str = ""
    env_steps_per_s: float | None = None
    opt_steps_per_s: float | None = None
    ratio: float | None = None
    ratio_asked: float | None = None
    reanalyzed: float | None = None
    reanalyzed_asked: float | None = None
    policy_lag: float | None = None
    worker_time: Mapping[str, float] = field(default_factory=dict)
    trainer_time: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
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
        return self.state not in ("starting", "running", "paused", "ending")

    def age_s(self, moment: float) -> float:
        """Return the duration of the run at `moment` [s since the epoch], or the final duration if the run is over."""
        return self.wall_s if self.is_over else max(0.0, moment - self.started)

    @property
    def position(self) -> int:
        """The position of the run's clock."""
        return self.env_steps if self.total_updates is None else self.opt_steps

    @property
    def total(self) -> int:
        """The position at which the run ends."""
        return self.total_env_steps if self.total_updates is None else self.total_updates

    @property
    def share(self) -> float:
        return min(1.0, self.position / max(1, self.total))

    @property
    def awaited(self) -> str:
        """Text that names what the run is waiting for, with seconds or counts if they are known."""
        done = self.done or 0
        count = "" if self.awaits_s is None else f", {self.awaits_s:.0f} s so far"
        count += "" if self.needed is None else f" {done:,}/{self.needed:,}"
        if self.needed is not None and self.done_per_s:
            left_s = max(0, self.needed - done) / self.done_per_s
            count += f", {self.done_per_s:.3g} steps/s, about {left_s:.0f} s left"
        return f"{self.awaits}{count}" if self.awaits else ""

    def evaluated(self, position: int, mean: float) -> "Status":
        """Return the status with another evaluation. Ignore an evaluation whose mean is not finite."""
        if not math.isfinite(mean):
            return self
        best = self.best if self.best is not None and self.best[1] >= mean else (position, mean)
        return dataclasses.replace(self, scores=(*self.scores, (position, mean))[-MAX_SCORES:], best=best)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Status":  # Any: JSON data
        """Return the status from fields that were read from JSON. Ignore unknown fields of other package versions."""
        known = {f.name: fields[f.name] for f in dataclasses.fields(cls) if f.name in fields}
        for name in ("worker_time", "trainer_time", "losses"):
            known[name] = {key: value for key, value in known.get(name, {}).items() if value is not None}
        known["scores"] = tuple((steps, mean) for steps, mean in known.get("scores", ()) if mean is not None)
        known["best"] = tuple(known["best"]) if known.get("best") else None
        return cls(**known)

    def write(self, folder: Path) -> None:
        """Replace the status file of a run atomically, without forcing the data to disk."""
        replace_file(folder / STATUS_FILE, json.dumps(finite(dataclasses.asdict(self))).encode(), syncs=False)

    @classmethod
    def read(cls, folder: Path) -> "Status | None":
        """Return the newest status of a run, or None if no status can be read."""
        try:
            return cls.of(json.loads(read_file(folder / STATUS_FILE)))
        except (OSError, ValueError, TypeError, AttributeError):
            return None


def finite(value: Any) -> Any:  # Any: JSON data
    """Return data for JSON: NaN and infinity become None, and tuples become lists."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
