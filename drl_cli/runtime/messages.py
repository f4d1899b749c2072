"""The messages between roles. A message is a header that the orchestrator reads; arrays are separate results.

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

A re-analyser takes the place of a trainer in routes 3 to 5: it draws windows, and writes new columns.

Without proxies, the orchestrator calls the workers itself: one call replaces routes 1 and 2, and another call replaces
routes 7 and 8. TrainReport, ReanalysisReport and EvalReport are answers to calls of the orchestrator. LoadParams is
in `types`, because a checkpoint has one, too.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drl_cli.types import Array, Columns, Episode, LoadParams
from drl_cli.utils.moments import RunningMoments


class Told(NamedTuple):
    """What a worker reports: its index, its steps in finished collect calls, and its steps in the running call."""

    worker: int
    finished: int
    running: int


@dataclass(frozen=True, kw_only=True)
class Block:
    """The origin of the rows of one collect call: block `number` of one incarnation of one worker.

    `version` and `opt_steps` belong to the parameters that chose the actions. Version -1 means random actions.
    """

    worker: int
    incarnation: int
    number: int
    rows: int
    first_env_step: int
    last_env_step: int
    version: int
    opt_steps: int


class ProcessKey(NamedTuple):
    """A process. Its start time [s] is needed because the system reuses process ids."""

    host: str
    pid: int
    began: float


@dataclass(frozen=True)
class ProcessUse:
    """Processor time `cpu_s` [s] and present memory `rss` [bytes] of a process."""

    role: str
    key: ProcessKey
    cpu_s: float
    rss: int


@dataclass(frozen=True)
class InsertTransition:
    """Header of new rows for replay.

    `rows` counts complete rows, and `env_steps` counts environment steps. A later call may complete the rows of the
    last steps. The call took `seconds`. `work_s` is the working time [s], summed over workers; `env_s` was spent in
    environments and `policy_s` in the policy. Each line of `faults` names a replaced environment and the reason. A
    proxy adds its restarted workers (`restarts`, `notes`) and its message counts (`routes`).
    """

    blocks: tuple[Block, ...]
    episodes: tuple[Episode, ...]
    seconds: float
    restarts: int = 0
    routes: Mapping[int, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    work_s: float = 0.0
    env_s: float = 0.0
    policy_s: float = 0.0

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def env_steps(self) -> int:
        return sum(block.last_env_step - block.first_env_step for block in self.blocks)


@dataclass(frozen=True)
class SampleBatch:
    """Request for `num_batches` batches, each split equally between `num_trainers` trainers.

    `version` is the newest parameter version. On-policy tables drop transitions that are too old for this version.
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

    `row_ids` `[num_batches, batch_size]`, or of the steps of windows `[..., seq_len]`, are set if rows get new
    priorities (`needs_priorities`) or columns. `waiting` and `repeats` are the state of a queue, as in `Sampled`.
    `stats` are the table's metrics. `version` and `env_steps` are copied from the request. If the trainer normalises,
    `moments` are the moments of all rows inserted into `shard`. `seconds` is the duration of the draw.
    """

    num_batches: int
    row_ids: Array | None = field(default=None, compare=False)
    needs_priorities: bool = field(default=True, compare=False)
    waiting: int = 0
    repeats: int = 0
    stats: Mapping[str, float] = field(default_factory=dict, compare=False)
    version: int = 0
    env_steps: int = 0
    shard: int = 0
    moments: RunningMoments | None = field(default=None, compare=False)
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class UpdatePriority:
    """New values for rows of a BatchTrainingData: priorities `[num_batches, batch_size]`, or `[..., seq_len]` for
    sequences, and `columns` `[num_batches, batch_size, ...]`.

    This is the second result of a train call. The orchestrator forwards only a reference to this result.
    """

    row_ids: Array = field(compare=False)
    priorities: Array | None = field(compare=False)
    columns: Columns = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """Result of one train call. `metrics` are means over its `num_updates` updates.

    `skipped` counts updates that were left out because they were not finite. `num_batches` batches were drawn in
    `sample_s` seconds. `waiting` and `repeats` are the state of a queue, as in `Sampled`. `replay` are the table's
    metrics. The call took `seconds`, of which `batch_s` was spent on preparing the batches. `notes` are texts for the
    user, with their level of `logging`.
    """

    opt_steps: int
    num_updates: int
    skipped: int
    metrics: Mapping[str, float]
    seconds: float
    num_batches: int
    replay: Mapping[str, float]
    sample_s: float
    waiting: int = 0
    repeats: int = 0
    batch_s: float = 0.0
    notes: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReanalysisReport:
    """Result of one call of a re-analyser: it searched `steps` steps in `seconds`."""

    steps: int
    seconds: float


@dataclass(frozen=True)
class EvalReport:
    """Result of one evaluation, which ended `wall_s` seconds after the start of the run.

    `cut` counts episodes that reached the step limit. `problem` explains why the result or the best model could not be
    saved. `info` has the mean of each number that the environment reports.
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
    """Counts messages by route. Calls `observe(route, count, detail)` for each addition."""

    def __init__(self, observe: Callable[[int, int, Mapping[str, int]], None] | None = None) -> None:
        self.counts: Counter[int] = Counter(dict.fromkeys(range(1, 9), 0))
        self.observe = observe

    def add(self, route: int, count: int = 1, **detail: int) -> None:
        self.counts[route] += count
        if self.observe is not None and count:
            self.observe(route, count, detail)

    def take(self) -> dict[int, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts
