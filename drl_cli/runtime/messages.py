"""The eight messages: headers that the orchestrator reads. Arrays travel beside a header, as a second result.

| route | from -> to | message |
|---|---|---|
| 1 | Worker -> WorkerProxy | InsertTransition |
| 2 | WorkerProxy -> Orchestrator | InsertTransition (merged) |
| 3 | Orchestrator -> TrajectoryManager | InsertTransition, SampleBatch |
| 4 | TrajectoryManager -> Trainer | BatchTrainingData |
| 5 | Trainer -> TrajectoryManager | UpdatePriority |
| 6 | Trainer -> Orchestrator | LoadParams |
| 7 | Orchestrator -> WorkerProxy | LoadParams |
| 8 | WorkerProxy -> Worker | LoadParams |

Without proxies the orchestrator calls the workers: routes 1 and 2 are then one call, and so are routes 7 and 8.
TrainReport and EvalReport answer calls of the orchestrator.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drl_cli.types import Array, Episode
from drl_cli.utils.moments import RunningMoments


@dataclass(frozen=True, kw_only=True)
class Block:
    """The origin of the rows of one collect call: block `number` of one incarnation of one worker.

    `version` and `opt_steps` describe the parameters that chose the actions; version -1 means random actions.
    """

    worker: int
    incarnation: int
    number: int
    rows: int
    first_env_step: int
    last_env_step: int
    version: int
    opt_steps: int


@dataclass(frozen=True)
class ProcessUse:
    """Processor time of a process since its start at `began` [s], and its present memory `rss` [bytes]."""

    role: str
    host: str
    pid: int
    began: float
    cpu_s: float
    rss: int


@dataclass(frozen=True)
class InsertTransition:
    """Header of rows for replay.

    `rows` counts complete rows. `env_steps` counts environment steps; the rows of the last steps may come later.
    `work_s` is the workers' working time [s], summed over workers; `env_s` and `policy_s` are its parts in environments
    and in the policy. `uses` has a sample of processes from time to time. Each line of `faults` names a replaced
    environment and the reason. A proxy adds its replaced workers (`restarts`, `notes`) and its messages by route.
    """

    blocks: tuple[Block, ...]
    episodes: tuple[Episode, ...]
    collect_s: float
    restarts: int = 0
    routes: Mapping[int, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    work_s: float = 0.0
    env_s: float = 0.0
    policy_s: float = 0.0
    uses: tuple[ProcessUse, ...] = ()

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def env_steps(self) -> int:
        return sum(block.last_env_step - block.first_env_step for block in self.blocks)


@dataclass(frozen=True)
class SampleBatch:
    """Request for `num_batches` batches, each split equally between `num_trainers`.

    `version` is the newest parameter version; on-policy tables drop transitions that are too old for this version.
    `env_steps` counts the steps of all workers so far.
    """

    num_batches: int
    batch_size: int
    version: int = 0
    num_trainers: int = 1
    env_steps: int = 0


@dataclass(frozen=True)
class BatchTrainingData:
    """Header of batches `[num_batches, batch_size, ...]` for one trainer.

    `inserts` counts the transitions that the table had received before the draw. `row_ids` `[num_batches, batch_size]`
    identify the rows if the table wants new priorities. `dropped` transitions were too old. `stats` are the table's
    metrics. `version` and `env_steps` repeat the request. `moments` cover all rows inserted into this `shard` if the
    trainer normalises. `seconds` is the drawing time.
    """

    trainer: int
    num_batches: int
    batch_size: int
    inserts: int
    row_ids: Array | None = field(default=None, compare=False)
    dropped: int = 0
    stats: Mapping[str, float] = field(default_factory=dict, compare=False)
    version: int = 0
    env_steps: int = 0
    shard: int = 0
    moments: RunningMoments | None = field(default=None, compare=False)
    seconds: float = field(default=0.0, compare=False)
    uses: tuple[ProcessUse, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class UpdatePriority:
    """New priorities `[num_batches, batch_size]` of the rows of a BatchTrainingData; of sequences `[..., seq_len]`.

    The orchestrator forwards only a reference to this second result of a train call.
    """

    trainer: int
    row_ids: Array = field(compare=False)
    priorities: Array = field(compare=False)


@dataclass(frozen=True)
class LoadParams:
    """Header of a parameter version; -1 before the first. The vector travels only to roles with an older version.

    The trainer published the version after `opt_steps` updates, at `env_steps` environment steps. `random_actions` asks
    for random actions in the next collect. `exploration` has the values of the exploration schedules at `env_steps`.
    """

    version: int
    opt_steps: int
    env_steps: int
    random_actions: bool = False
    exploration: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """Result of one train call; `metrics` are means over its `num_updates` updates.

    `skipped` updates were left out because they were not finite. `num_batches` batches were drawn in `sample_s` seconds
    and `dropped` transitions were too old; `replay` are the table's metrics. `batch_s` is the part of `seconds` that
    prepared the batches. `uses` includes the replay shard's process.
    """

    opt_steps: int
    num_updates: int
    skipped: int
    metrics: Mapping[str, float]
    seconds: float
    num_batches: int
    dropped: int
    replay: Mapping[str, float]
    sample_s: float
    batch_s: float = 0.0
    uses: tuple[ProcessUse, ...] = ()


@dataclass(frozen=True)
class EvalReport:
    """Result of one evaluation, which ended `wall_s` seconds after the run's start.

    `cut` episodes reached the step limit. `problem` tells why the result or the best model could not be saved. `info`
    has the means of the numbers that the environment reports.
    """

    params_header: LoadParams
    wall_s: float
    statistics: Mapping[str, float]
    cut: int
    is_best: bool
    problem: str | None = None
    info: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return self.statistics["mean"]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "EvalReport":  # Any: json
        return cls(**{**fields, "params_header": LoadParams(**fields["params_header"])})


class MessageCounts:
    """Message counts by route; `observe(route, count, detail)` is called for each addition."""

    def __init__(self, observe: Callable[[int, int, Mapping[str, int]], None] | None = None) -> None:
        self.counts: Counter[int] = Counter(dict.fromkeys(range(1, 9), 0))
        self.observe = observe

    def add(self, route: int, count: int = 1, **detail: int) -> None:
        self.counts[route] += count
        if self.observe is not None:
            self.observe(route, count, detail)

    def merge(self, counts: Mapping[int, int]) -> None:
        for route, count in counts.items():
            if count:
                self.add(route, count)

    def take(self) -> dict[int, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts
