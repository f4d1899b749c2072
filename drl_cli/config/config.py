"""The config: names, types and ranges of all keys. The default values and the comments are in conf/*.yaml."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.context import RewardConfig
from drl_cli.algos.lookup import load_algorithm, module_path
from drl_cli.config import sections
from drl_cli.envs.config import NO_ENV, EnvConfig, wrapper_path
from drl_cli.metrics.console import Kind
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.replay.base import Load, ReplayConfig
from drl_cli.utils.ranges import Count, FolderPath, Label, Natural, Texts
from drl_cli.utils.run_clock import RunClock

Mode = Literal["single", "sync", "async", "offline"]

MOST_UPDATES: Mapping[Mode, int] = {"single": 16, "sync": 16, "async": 32, "offline": 16}
MOST_ROWS: Mapping[Mode, int] = {"single": 512, "sync": 512, "async": 1024, "offline": 512}
"""Upper limits on the default size of a call: updates per train call, and rows per collect call."""
DESCRIBING = ("name", "tags", "notes")
"""Keys with which users describe a run. They change nothing in the run."""

MIN_INSERTS = 1000
SAMPLE_LOAD_RATIO = 16.0
"""The values of these keys if they are null and the algorithm is off-policy."""


@dataclass(frozen=True)
class Config:
    """The config of one run. The properties compute values that several parts of the program need, each once."""

    env: EnvConfig
    algo: AlgoConfig
    mode: Mode
    name: Label | None
    tags: tuple[Label, ...]
    notes: str | None
    seed: Natural
    total_env_steps: Count
    total_updates: Count
    device: Annotated[str, Texts(("auto", "cpu", "cuda"), "cuda:N", r"cuda:\d+", "auto, cpu, cuda or cuda:N")]
    precision: Literal["float32", "bf16"]
    output_dir: FolderPath
    load_weights: str | None
    resume: str | None
    from_config: str | None
    confirm: bool
    trust: bool
    dry_run: bool
    explain: bool
    console: Kind
    data: sections.DataConfig
    stop: sections.StopConfig
    orchestrator: sections.OrchestratorConfig
    worker: sections.WorkerConfig
    replay: ReplayConfig
    trainer: sections.TrainerConfig
    reanalyzer: sections.ReanalyzerConfig
    manage: sections.ManageConfig
    network: NetworkConfig
    optimizer: OptimizerConfig
    reward: RewardConfig
    checkpoint: sections.CheckpointConfig
    logger: sections.LoggerConfig
    ray: sections.RayConfig
    sweep: sections.SweepConfig
    hpo: sections.HpoConfig
    debug: sections.DebugConfig

    @cached_property
    def is_offline(self) -> bool:
        """Whether the run has no workers, and learns from a dataset only."""
        return self.mode == "offline"

    @cached_property
    def is_one_process(self) -> bool:
        """Whether all roles except manage take turns in the main process."""
        return self.mode in ("single", "offline")

    @cached_property
    def trains_apart(self) -> bool:
        """Whether each trainer has a process of its own, which Ray starts where there is a GPU, if it needs one."""
        return not self.debug.in_process and (self.mode == "async" or (self.mode == "sync" and self.trainer.num > 1))

    @cached_property
    def mixes_data(self) -> bool:
        """Whether batches have rows of a dataset beside the rows of the workers."""
        return self.data.source is not None and not self.is_offline

    @cached_property
    def has_env(self) -> bool:
        """Whether the run has an environment. A run without workers needs one only for its evaluations."""
        return self.env.id != NO_ENV

    @cached_property
    def clock(self) -> RunClock:
        """The clock that everything with a period or a schedule asks."""
        if self.is_offline:
            return RunClock("opt_steps", self.total_updates)
        return RunClock("env_steps", self.total_env_steps)

    @cached_property
    def algo_name(self) -> str:
        """The displayed name of the algorithm: the preset, or `algo.name` if there is no preset."""
        return self.algo.preset or self.algo.name

    @cached_property
    def num_workers(self) -> int:
        """The number of workers at the start. `settings/fill.py` has already replaced null and auto."""
        assert isinstance(self.worker.num, int)
        return self.worker.num

    @cached_property
    def most_workers(self) -> int:
        """The maximum number of workers at one time."""
        return self.worker.max_num or self.num_workers

    @cached_property
    def block_rows(self) -> int:
        """The number of rows from one collect call, over all environments of a worker.

        `worker.unroll` sets the steps of each environment in a block. The default is enough for two train calls, up to
        a limit. On-policy, the default is the worker's share of a batch. Small blocks keep the replay ratio exact.
        Large blocks save calls, each of which takes about 2 ms of processor time.
        """
        if self.worker.unroll is not None:
            return self.worker.unroll * self.worker.envs
        if self.worker.block_rows is not None:
            return self.worker.block_rows
        if self.is_on_policy:
            return self.worker.envs * -(-self.trainer.batch_size // (self.num_workers * self.worker.envs))
        enough = 2 * MOST_UPDATES[self.mode] / self.orchestrator.sample_insert_ratio
        return max(self.worker.envs, min(MOST_ROWS[self.mode], int(enough)))

    @cached_property
    def rows_per_collect(self) -> int:
        """The number of environment steps of one worker in one collect call."""
        return max(1, self.block_rows // self.worker.envs) * self.worker.envs

    @cached_property
    def row_steps(self) -> int:
        """The number of environment steps that one row spans."""
        return self.replay.row_steps(self.algo.n_step)

    @cached_property
    def random_steps(self) -> int:
        """The number of random environment steps at the start, over all workers.

        The default is `min_inserts`, or 0 with load_weights. On-policy, it is 0, because the algorithm must not learn
        from random actions.
        """
        if self.worker.random_steps is not None:
            return self.worker.random_steps
        return 0 if self.load_weights or self.is_on_policy else self.min_inserts

    @cached_property
    def min_inserts(self) -> int:
        """The number of transitions in replay before the first update. On-policy, the default is 0."""
        given = self.orchestrator.min_inserts
        if self.is_offline:  # the limiter waits until the dataset is read
            return 0
        return given if given is not None else 0 if self.is_on_policy else MIN_INSERTS

    @cached_property
    def sample_load_ratio(self) -> float:
        """The number of updates between two policy versions. On-policy, the default is one version per batch."""
        given = self.orchestrator.sample_load_ratio
        return given if given is not None else 1.0 if self.is_on_policy else SAMPLE_LOAD_RATIO

    @cached_property
    def versions_per_batch(self) -> int:
        """On-policy, the number of policy versions that are published while a batch is served `replay.times` times.

        By default, a version is published after the last update with a batch. In mode=sync, it is published after the
        updates with all batches that wait.
        """
        given = self.orchestrator.sample_load_ratio
        return 1 if given is None or self.mode != "async" else max(1, math.ceil(self.replay.servings / given))

    @cached_property
    def load(self) -> Load:
        """What this config asks of its replay table. A block comes from a worker, or from a proxy for its workers."""
        collected, is_async = self.num_workers * self.rows_per_collect, self.mode == "async"
        members = self.num_workers if self.worker.is_elastic else self.worker.num_proxies or self.num_workers
        block_rows = collected // max(1, members)  # with is_elastic, `most_per_node` limits the blocks of proxies
        size, versions = self.trainer.batch_size, self.versions_per_batch
        return Load(self.total_env_steps, size, block_rows, collected, is_async, versions)

    @cached_property
    def is_on_policy(self) -> bool:
        """Whether the algorithm is on-policy, so that replay is a queue."""
        return self.replay.is_queue

    @cached_property
    def writes(self) -> bool:
        """Whether trainers send new values of columns of the sampled rows back to replay (`WRITES`)."""
        return bool(load_algorithm(self.algo.name).WRITES)

    @cached_property
    def num_shards(self) -> int:
        """The number of replay shards. On-policy, there is one shard, which keeps the transitions in time order."""
        return 1 if self.is_on_policy or self.data.source else self.replay.shards or self.num_workers // 25 + 1

    @cached_property
    def most_inserts(self) -> int:
        """The maximum number of inserted transitions. Every worker's last block may end after total_env_steps."""
        if self.is_offline:
            return self.replay.num_transitions
        return self.total_env_steps + self.most_workers * self.rows_per_collect

    @cached_property
    def updates_per_call(self) -> int:
        """The maximum number of updates in a train call.

        The default is the replay ratio times the environment steps in a worker's collect call, up to a limit.
        """
        if self.is_on_policy:
            return 1
        most = MOST_UPDATES[self.mode]
        paid = most if self.is_offline else int(self.orchestrator.sample_insert_ratio * self.rows_per_collect)
        return self.trainer.updates_per_call or max(1, min(most, paid))

    @cached_property
    def reanalyzed_per_call(self) -> int:
        """The maximum number of steps in one call of a re-analyser: all steps of its windows."""
        steps = self.replay.steps
        return self.reanalyzer.windows * (steps.length if steps else 1)

    @cached_property
    def num_updates(self) -> int:
        """The number of updates of a whole run. Rows that are incomplete at the end of the run get no updates."""
        if self.is_offline:
            return self.total_updates
        pace, open_rows = self.orchestrator, self.num_workers * self.worker.envs * (self.row_steps - 1)
        return max(0, int(pace.sample_insert_ratio * (self.total_env_steps - open_rows - self.min_inserts)))

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether equal seeds must give equal weights. If so, no choice may depend on measured times."""
        return self.mode != "async" or self.debug.in_process

    @cached_property
    def outside_modules(self) -> list[str]:
        """All modules that the run uses from outside this package, including the evaluator and the recorders."""
        return self.outside(self.manage.evaluator, *self.logger.recorders)

    def outside(self, *paths: str | None) -> list[str]:
        """Return the modules from outside this package that define what is learned and how, and those of `paths`."""
        learning = (self.network.torso, self.optimizer.name, self.reward.name, self.env.id, self.replay.outside_sampler)
        found = (*paths, *learning, *map(wrapper_path, self.env.wrappers))
        named = (module_path(self.algo.name), *(path for path in found if path and ":" in path))
        modules = {path.partition(":")[0] for path in named}
        return sorted(module for module in modules if module.partition(".")[0] != __name__.partition(".")[0])
