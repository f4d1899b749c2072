"""The eight messages: headers that the orchestrator reads. Their bytes travel beside them, as a second result.

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

Without a proxy a worker takes its place: routes 1 and 2 are then one and the same call, and so are 7 and 8.
TrainReport and EvalReport are the answers to calls of the orchestrator.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drl_cli.types import Array, Episode
from drl_cli.utils.moments import RunningMoments


@dataclass(frozen=True)
class Block:
    """Where the rows of one collect call come from.

    `version` and `opt_steps` are of the parameters that acted; version -1 acted at random, without parameters.
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
    """What a process of a role has used since it `began`: processor seconds; and its memory now, in bytes."""

    role: str
    host: str
    pid: int
    began: float
    cpu_s: float
    rss: int


@dataclass(frozen=True)
class InsertTransition:
    """Header of rows for replay. `rows` are complete; `env_steps` were taken, of which some rows may come later.

    The workers were at work for `work_s` seconds, summed over them; `env_s` of these went into environments, `policy_s`
    into the policy. `uses` says what processes have used, where it is time to.
    `faults` says, a line each, which environments were made anew and why. A proxy adds which of its workers were
    replaced, in `restarts` and `notes`, and the messages within it, by route.
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
    """Draw `num_batches` batches and give each of `num_trainers` an equal part of every one.

    `version` is the newest of the parameters: on-policy tables serve nothing that is too old for it. `env_steps` were
    taken so far, over all workers.
    """

    num_batches: int
    batch_size: int
    version: int = 0
    num_trainers: int = 1
    env_steps: int = 0


@dataclass(frozen=True)
class BatchTrainingData:
    """Batches `[num_batches, batch_size, ...]` for one trainer, drawn when the table had seen `inserts` transitions.

    `row_ids` `[num_batches, batch_size]` are the numbers of the rows, where the table wants their priorities;
    `dropped` transitions were too old to be served; `stats` is what the table has to report. `version` and `env_steps`
    are the request's; `moments` are those of all rows that came into this `shard`, where the trainer normalises by
    them. `seconds` is what drawing took, `uses` as in InsertTransition.
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
    """New priorities for the rows of a BatchTrainingData, both `[num_batches, batch_size]`; of steps `[..., seq_len]`.

    It travels whole, as the second result of a train call: the orchestrator passes on the reference.
    """

    trainer: int
    row_ids: Array = field(compare=False)
    priorities: Array = field(compare=False)


@dataclass(frozen=True)
class LoadParams:
    """Header of a parameter version, -1 while there is none; the vector is sent only to those who have an older one.

    It came of `opt_steps` updates, and was asked for after `env_steps`. `random_actions`: the next collect is to act at
    random.
    `exploration` are the values of the algorithm's exploration schedules at this version's env_steps.
    """

    version: int
    opt_steps: int
    env_steps: int
    random_actions: bool = False
    exploration: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainReport:
    """What one train call did: metrics are means over its updates.

    `skipped` more were left out, being not finite. `num_batches` were served, `dropped` transitions were not, being
    too old, and `sample_s` went into drawing; `replay` is the table's own report. Of the `seconds`, `batch_s` went into
    making the batches ready. `uses` as in InsertTransition, the replay shard's included.
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
    """One evaluation: what was evaluated, when it ended (the run's seconds), how it scored.

    `problem`: why it could not be written down, or its model not saved. `info`: means of what the environment says.
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
        """The report that `dataclasses.asdict` took apart."""
        return cls(**{**fields, "params_header": LoadParams(**fields["params_header"])})


class Trace:
    """Counts messages by route; `observe` is told of each, too, with what there is to say of it."""

    def __init__(self, observe: Callable[[int, int, Mapping[str, int]], None] | None = None) -> None:
        self.counts: Counter[int] = Counter(dict.fromkeys(range(1, 9), 0))
        self.observe = observe

    def add(self, route: int, count: int = 1, **detail: int) -> None:
        """More messages on this route."""
        self.counts[route] += count
        if self.observe is not None:
            self.observe(route, count, detail)

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add what another process counted."""
        for route, count in counts.items():
            if count:
                self.add(route, count)

    def take(self) -> dict[int, int]:
        """The counts since the last take."""
        counts, self.counts = dict(self.counts), Counter()
        return counts
