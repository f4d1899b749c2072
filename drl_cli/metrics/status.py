"""Status: the state of a run at one moment, in a file for drl-watch, and as lines of text."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drl_cli.utils.files import read_file, replace_file
from drl_cli.utils.shown import score_text

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
    def of(cls, fields: Mapping[str, Any]) -> "Status":
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


def finite(value: Any) -> Any:
    """Return data for JSON: NaN and infinity become None, and tuples become lists."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


NO_EPISODE = "no episode has ended yet"
LINE_LOSSES = 3
"""The number of losses in a line about a run without workers."""


def clock(seconds: float | None) -> str:
    """Return a duration such as `0:03:58`, or `-` if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    total = max(0, int(seconds))
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def number(value: float | None, form: str = ",.0f") -> str:
    """Return a number in the format `form`, or `-` if it is unknown or not finite."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def ratio_text(status: Status) -> str:
    """Return the replay ratio and its target, such as `0.483 of 0.5`."""
    asked = "" if status.ratio_asked is None else f" of {status.ratio_asked:g}"
    return f"{number(status.ratio, '.3g')}{asked}"


def reanalyzed_text(status: Status) -> str:
    """Return the steps that were searched again per transition, with the target; empty without re-analysers."""
    if status.reanalyzed_asked is None:
        return ""
    return f"re-analysed {number(status.reanalyzed, '.3g')} of {status.reanalyzed_asked:g}"


def left_text(status: Status) -> str:
    """Return the time left. It is an upper limit if the run may end earlier, at a target return."""
    at_most = "at most " if status.goal is not None and status.left_s is not None else ""
    return f"left {at_most}{clock(status.left_s)}"


def report_line(status: Status) -> str:
    """Return a line about training, without unknown values. Successive lines have aligned columns."""
    is_offline = status.total_updates is not None
    rates = "" if is_offline else f"{_cell('{} env/s', status.env_steps_per_s)}  "
    rates += _cell("{} updates/s", status.opt_steps_per_s)
    if status.awaits:
        return f"{_begin(status, status.position)}  waiting for {status.awaited}  {rates}".rstrip()
    mean, length = status.train_return, status.train_length
    episodes = f"{_cell('train return {}', mean, 9, score_text)}  {_cell('length {}', length)}"
    if mean is None:
        episodes = f"{NO_EPISODE:<{len(episodes)}}"
    if is_offline:
        episodes = "  ".join(f"{name} {value:.3g}" for name, value in [*status.losses.items()][:LINE_LOSSES])
    ratio = "" if status.ratio is None else f"ratio {ratio_text(status)}"
    left = "" if status.state == "ending" or status.left_s is None else left_text(status)
    columns = [episodes, rates, ratio, _cell("lag {}", status.policy_lag, 4), left]
    columns[3:3] = [text for text in (reanalyzed_text(status),) if text]
    return "  ".join([_begin(status, status.position), *columns]).rstrip()


def evaluation_line(status: Status, statistics: Mapping[str, float], position: int, is_best: bool) -> str:
    """Return a line about an evaluation that is already in `status`. Only the mean must be in `statistics`."""
    best = "" if status.best is None else f"  best {score_text(status.best[1])}"
    target = "" if status.goal is None else f"  target {status.goal:g}"
    spread = ""
    if "std" in statistics:
        low_high = f"[{score_text(statistics['min'])}, {score_text(statistics['max'])}]"
        spread = f"  +- {score_text(statistics['std'])} {low_high} over {statistics['episodes']:.0f} episodes"
    if "normalized_score" in statistics:
        spread += f"  score {score_text(statistics['normalized_score'])}"
    mark = "  (new best)" if is_best else ""
    newest = max(status.position, position)  # training has gone on during the evaluation
    at = f"  at {step_text(status)} {position:,}" if position < newest else ""
    return f"{_begin(status, newest)}  eval  return {score_text(statistics['mean']):>9}{spread}{best}{target}{at}{mark}"


def step_text(status: Status) -> str:
    """Return what a number of the run's clock counts."""
    return "step" if status.total_updates is None else "update"


def _begin(status: Status, position: int) -> str:
    share = min(1.0, position / max(1, status.total))
    return f"{clock(status.wall_s):>9}  {share:>6.1%}  {step_text(status)} {position:>{len(f'{status.total:,}')},}"


def _cell(text: str, value: float | None, width: int = 6, show: Callable[[float | None], str] = number) -> str:
    """Return the text with the value in place of `{}`, or as many spaces if the value is unknown."""
    cell = text.format(f"{show(value):>{width}}")
    return " " * len(cell) if value is None else cell
