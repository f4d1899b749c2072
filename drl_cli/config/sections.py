"""Sections of the config for roles and tools. Sections such as network and replay are in their own packages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from drl_cli.utils.ranges import OR_NULL, Count, Fraction, ImportPath, Natural, NonNegative, Positive, Range

Fetch: TypeAlias = Literal["collect", "episode"] | Count
Exploration: TypeAlias = Literal["ladder", "env_ladder"] | tuple[Mapping[str, float], ...] | None


@dataclass(frozen=True)
class DataConfig:
    """The datasets to learn from, and the share of each batch that comes from them if there are workers, too."""

    source: str | tuple[str, ...] | None
    share: Annotated[float, Range(above=0, below=1)]
    download: bool
    reference: Literal["auto"] | tuple[float, ...] | None

    @property
    def reference_returns(self) -> tuple[float, ...] | None:
        """The returns of a random policy and of an expert, or None if they are not known or not measured yet."""
        return None if self.reference == "auto" else self.reference

    @property
    def sources(self) -> tuple[str, ...]:
        """The name of each dataset."""
        return (self.source,) if isinstance(self.source, str) else self.source or ()

    @property
    def text(self) -> str:
        """The source as the user types it."""
        return self.source if isinstance(self.source, str) else f"[{','.join(self.sources)}]"


@dataclass(frozen=True)
class StopConfig:
    """Conditions that end a run before total_env_steps or total_updates."""

    return_: float | None
    wall_s: Positive | None


@dataclass(frozen=True)
class OrchestratorConfig:
    """The replay ratio, and how far workers and trainers may deviate from it."""

    sample_insert_ratio: Annotated[Positive, OR_NULL]
    sample_load_ratio: Positive | None
    min_inserts: Natural | None
    limiter: Literal["ratio", "none"]
    band: Positive | None
    gather_window_s: NonNegative
    stall_s: Positive


@dataclass(frozen=True)
class WorkerConfig:
    """The workers: their number, environments, block size, exploration and restarts."""

    num: Count | Literal["auto"] | None
    max_num: Count | None
    proxies: Natural | Literal["auto"]
    envs: Annotated[Count, OR_NULL]
    block_rows: Count | None
    unroll: Count | None
    random_steps: Natural | None
    fetch: Fetch
    exploration: Exploration
    step_timeout_s: Positive
    max_restarts: Natural

    @property
    def known_num(self) -> int:
        """The number of workers, or 1 while it is null or auto."""
        return self.num if isinstance(self.num, int) else 1

    @property
    def is_elastic(self) -> bool:
        """Whether workers come and go with the nodes of a cluster. `settings/fill.py` sets `max_num` only then."""
        return self.max_num is not None

    @property
    def num_proxies(self) -> int:
        """The number of worker proxies, or 0 without proxies. On a cluster, `settings/fill.py` has replaced `auto`."""
        return 0 if self.proxies == "auto" else self.proxies

    @property
    def incarnations_per_proxy(self) -> int:
        """The number of incarnations that a worker can have during one incarnation of its proxy."""
        return self.max_restarts + 1


@dataclass(frozen=True)
class TrainerConfig:
    """The trainers and their minibatches."""

    num: Count
    batch_size: Annotated[Count, OR_NULL]
    updates_per_call: Count | None
    threads: Literal["auto"] | Count
    products: Literal["auto", "torch", "onednn"]
    compile: Literal["auto", "replay"] | bool
    on_nonfinite: Literal["stop", "skip"]

    @property
    def num_threads(self) -> int:
        """The number of threads of each trainer. `settings/fill.py` has already replaced `auto`."""
        assert self.threads != "auto"
        return self.threads


@dataclass(frozen=True)
class ReanalyzerConfig:
    """The processes that search stored steps again, and how many steps they search."""

    num: Natural
    ratio: Positive
    windows: Count
    max_restarts: Natural


@dataclass(frozen=True)
class ManageConfig:
    """The process that evaluates policies and writes records."""

    eval_period: Annotated[Count, OR_NULL]
    eval_episodes: Count
    confirm_episodes: Natural
    max_episode_steps: Annotated[Count, OR_NULL]
    max_restarts: Natural
    env_kwargs: Mapping[str, Any]  # Any: arguments of the environment
    evaluator: ImportPath | None
    video_period: Natural


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save a checkpoint, and what the checkpoint contains."""

    period: Count
    period_s: Positive | None
    keep_last: Count
    replay: Literal["on", "off"]


@dataclass(frozen=True)
class LoggerConfig:
    """Recorders, and the time between reports."""

    report_s: Positive
    console_s: Positive
    tensorboard: bool
    wandb: Literal["none", "offline", "online"]
    mlflow: Literal["none", "offline"] | str  # a URI
    project: str
    recorders: tuple[ImportPath, ...]
    aliases: Literal["none", "sb3", "cleanrl"]


@dataclass(frozen=True)
class RayConfig:
    """A Ray session for this run, or an existing cluster."""

    address: str | None
    object_store_mb: Annotated[int, Range(least=80)] | None


@dataclass(frozen=True)
class SweepConfig:
    """How many jobs of a sweep run at the same time."""

    jobs: Literal["auto"] | Count
    max_jobs: Count


@dataclass(frozen=True)
class HpoConfig:
    """A hyperparameter search, or population-based training."""

    sampler: Literal["none", "random", "tpe", "gp", "cma", "pbt"]
    evaluations: Count
    trials: Count
    seeds: Count
    pruner: Literal["none", "median", "halving"]
    fresh_seeds: Natural
    members: Annotated[int, Range(least=2)]
    rounds: Count
    quantile: Annotated[float, Range(above=0, most=0.5)]
    resample: Fraction


@dataclass(frozen=True)
class DebugConfig:
    """Options for debugging a run."""

    trace: bool
    in_process: bool
