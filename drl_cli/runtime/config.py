"""All that can be configured: names, types and ranges. The values are in conf/*.yaml, each with its comment."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import module_path
from drl_cli.envs.config import EnvConfig
from drl_cli.metrics.console import Kind
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.replay.config import PrioritizedConfig, ReplayConfig, SequencesConfig
from drl_cli.replay.frames import Stacking, make_stackings
from drl_cli.types import EnvSpec
from drl_cli.utils.ranges import Count, Fraction, ImportPath, Natural, NonNegative, Positive, Range

Mode = Literal["single", "sync", "async"]
Fetch: TypeAlias = Literal["collect", "episode"] | Count
Exploration: TypeAlias = Literal["ladder", "env_ladder"] | tuple[Mapping[str, float], ...] | None

MOST_UPDATES: Mapping[Mode, int] = {"single": 16, "sync": 16, "async": 32}
MOST_ROWS: Mapping[Mode, int] = {"single": 512, "sync": 512, "async": 1024}
"""Of one train call and of one hand-over: every call between processes costs, and in mode=async there are most."""


@dataclass(frozen=True)
class StopConfig:
    """When to stop before total_env_steps."""

    return_: float | None
    wall_s: Positive | None


@dataclass(frozen=True)
class OrchestratorConfig:
    """Pace: the replay ratio and what follows from it."""

    sample_insert_ratio: Positive
    sample_load_ratio: Positive
    min_inserts: Natural
    limiter: Literal["ratio", "none"]
    band: Positive | None
    gather_window_s: NonNegative
    stall_s: Positive


@dataclass(frozen=True)
class WorkerConfig:
    """Who collects, how many environments each, in blocks of how many rows."""

    num: Count | None
    proxies: Natural | Literal["auto"]
    envs: Count
    block_rows: Count | None
    random_steps: Natural | None
    fetch: Fetch
    exploration: Exploration
    step_timeout_s: Positive
    max_restarts: Natural


@dataclass(frozen=True)
class TrainerConfig:
    """The learner processes."""

    num: Count
    batch_size: Count
    updates_per_call: Count | None
    threads: Literal["auto"] | Count
    products: Literal["auto", "torch", "onednn"]
    compile: bool
    on_nonfinite: Literal["stop", "skip"]


@dataclass(frozen=True)
class ManageConfig:
    """The process that evaluates and records."""

    eval_period: Count
    eval_episodes: Count
    confirm_episodes: Natural
    max_episode_steps: Count
    max_restarts: Natural
    env_kwargs: Mapping[str, Any]  # Any: whatever the environment's constructor takes
    evaluator: ImportPath | None
    video_period: Natural


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved to go on from."""

    period: Count
    keep_last: Count
    replay: Literal["on", "off"]


@dataclass(frozen=True)
class LoggerConfig:
    """What is written how often."""

    report_s: Positive
    console_s: Positive
    tensorboard: bool
    wandb: Literal["none", "offline", "online"]
    mlflow: str
    project: str
    recorders: tuple[ImportPath, ...]


@dataclass(frozen=True)
class RayConfig:
    """The Ray session: our own, or a cluster that exists."""

    address: str | None
    object_store_mb: Annotated[int, Range(least=80)] | None


@dataclass(frozen=True)
class SweepConfig:
    """The jobs of a sweep."""

    jobs: Literal["auto"] | Count


@dataclass(frozen=True)
class HpoConfig:
    """A search for values that learn better, or a population that changes them while it trains."""

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
    """For looking inside."""

    trace: bool
    in_process: bool


@dataclass(frozen=True)
class Config:
    """One run."""

    env: EnvConfig
    algo: AlgoConfig
    mode: Mode
    seed: Natural
    total_env_steps: Count
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["float32", "bf16"]
    output_dir: str
    load_weights: str | None
    resume: str | None
    from_config: str | None
    confirm: bool
    dry_run: bool
    explain: bool
    console: Kind
    stop: StopConfig
    orchestrator: OrchestratorConfig
    worker: WorkerConfig
    replay: ReplayConfig
    trainer: TrainerConfig
    manage: ManageConfig
    network: NetworkConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    logger: LoggerConfig
    ray: RayConfig
    sweep: SweepConfig
    hpo: HpoConfig
    debug: DebugConfig

    @property
    def num_workers(self) -> int:
        """Workers of this run (the cli fills in `worker.num=null`)."""
        assert self.worker.num is not None
        return self.worker.num

    @property
    def num_threads(self) -> int:
        """Threads of each trainer (the cli fills in `trainer.threads=auto`)."""
        assert self.trainer.threads != "auto"
        return self.trainer.threads

    @property
    def num_proxies(self) -> int:
        """Worker proxies of this run, 0 for none (on a cluster the cli fills in `worker.proxies=auto`)."""
        return 0 if self.worker.proxies == "auto" else self.worker.proxies

    @property
    def block_rows(self) -> int:
        """Rows of a hand-over: as given, or what pays for two train calls up to a most; on-policy, a share of a batch.

        Small hand-overs keep both sides close to the ratio at every moment, large ones save calls: about 2 ms of
        processor time for each.
        """
        if self.worker.block_rows is not None:
            return self.worker.block_rows
        if self.is_on_policy:
            return self.worker.envs * -(-self.trainer.batch_size // (self.num_workers * self.worker.envs))
        paying = 2 * MOST_UPDATES[self.mode] / self.orchestrator.sample_insert_ratio
        return max(self.worker.envs, min(MOST_ROWS[self.mode], int(paying)))

    @property
    def learning_modules(self) -> list[str]:
        """Modules from outside this package that learning depends on: of algorithm, network, environment, wrappers."""
        paths = (self.network.torso, self.env.id, *self.env.wrappers)
        return _outside(module_path(self.algo.name), *(path for path in paths if path and ":" in path))

    @property
    def outside_modules(self) -> list[str]:
        """All modules from outside this package that the run names: those, and of its evaluator and recorders."""
        paths = (self.manage.evaluator, *self.logger.recorders)
        return _outside(*self.learning_modules, *(path for path in paths if path))

    @property
    def restores_workers(self) -> bool:
        """Whether a checkpoint holds the workers' state, so that a resumed run goes on bit for bit."""
        return self.mode != "async" and self.num_proxies == 0

    @property
    def worker_layout(self) -> dict[str, int]:
        """What must be the same for a worker to take over another's state."""
        return {"num": self.num_workers, "envs": self.worker.envs, "row_steps": self.row_steps}

    @property
    def is_on_policy(self) -> bool:
        """Whether every transition is served once, and soon."""
        return self.replay.sampler == "fifo-once"

    @property
    def batches_per_insert(self) -> float:
        """Batches drawn per transition: the configured ratio, or what it takes to serve each transition once."""
        return 1 / self.trainer.batch_size if self.is_on_policy else self.orchestrator.sample_insert_ratio

    @property
    def num_shards(self) -> int:
        """Trajectory managers that share the replay's capacity; an on-policy queue keeps the order of time in one."""
        return 1 if self.is_on_policy else self.replay.shards or self.num_workers // 25 + 1

    def stackings(self, spec: EnvSpec) -> dict[str, Stacking]:
        """How worker and replay take images apart into frames; empty where rows hold observations as they are."""
        return make_stackings(spec) if self.replay.holds_frames else {}

    @property
    def steps_per_collect(self) -> int:
        """Steps of each environment in one collect call."""
        return max(1, self.block_rows // self.worker.envs)

    @property
    def rows_per_collect(self) -> int:
        """Environment steps in one collect call of one worker."""
        return self.steps_per_collect * self.worker.envs

    @property
    def updates_per_call(self) -> int:
        """Updates in one train call: as configured, at most what one collect pays for."""
        if self.is_on_policy:
            return 1
        paid = int(self.orchestrator.sample_insert_ratio * self.rows_per_collect)
        return self.trainer.updates_per_call or max(1, min(MOST_UPDATES[self.mode], paid))

    @property
    def is_repeatable(self) -> bool:
        """Whether equal seeds have to give equal weights, so that nothing may follow from a measurement of time."""
        return self.mode != "async" or self.debug.in_process

    @property
    def measures_products(self) -> bool:
        """Whether trainer.products=auto may follow from a measurement.

        Several trainers go by the rule, too: they are to be alike. So does a compiled program, which is made only once.
        """
        return not (self.is_repeatable or self.trainer.num > 1 or self.trainer.compile)

    @property
    def worker_priorities(self) -> bool:
        """Whether workers compute the first priorities of their rows."""
        return isinstance(self.replay, PrioritizedConfig) and self.replay.initial_priority == "worker"

    @property
    def row_steps(self) -> int:
        """Steps of an environment that may be taken until the first of them is in a row."""
        return self.replay.seq_len if isinstance(self.replay, SequencesConfig) else self.algo.n_step

    @property
    def num_updates(self) -> int:
        """Updates that a whole run makes at the configured ratio, less what rows still open at its end pay."""
        pace, open_rows = self.orchestrator, self.num_workers * self.worker.envs * (self.row_steps - 1)
        return max(0, int(pace.sample_insert_ratio * (self.total_env_steps - open_rows - pace.min_inserts)))

    @property
    def batches_per_shard(self) -> int:
        """Batches that a shard serves at least: its share, less what chance may give to others."""
        share = self.num_updates // self.num_shards
        return share if self.num_shards == 1 else max(0, share - 4 * math.isqrt(share))

    @property
    def random_steps(self) -> int:
        """Environment steps over all workers that act at random first; by default none with saved weights."""
        steps = self.worker.random_steps
        if steps is None:
            return 0 if self.load_weights else self.orchestrator.min_inserts
        return steps

    @property
    def steps_without_params(self) -> int:
        """Environment steps that may be taken before there are parameters: those at random, in mode=async.

        None where every step needs them all the same: in its log-probability, its memory, or for a first priority.
        """
        needs_params = self.is_on_policy or self.worker_priorities or self.network.memory != "none"
        return self.random_steps if self.mode == "async" and not needs_params else 0


def _outside(*paths: str) -> list[str]:
    """The modules of these paths, `module` or `module:Name`, that are not of this package."""
    modules = {path.partition(":")[0] for path in paths}
    return sorted(module for module in modules if module.partition(".")[0] != __name__.partition(".")[0])
