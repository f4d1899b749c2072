"""The graph: every role, and which handle each is given. Read it top to bottom, as the data flows.

worker ..N --1--> proxy --2--> ORCHESTRATOR --3--> trajectory manager --4--> trainer
   ^                ^               | ^                    ^                   | |
   '------8---------'-------7-------' '---------6----------|-------------------' |
                                    |                      '--------5------------'
                                    '--> parameter server, manage
"""

import logging
from collections.abc import Callable
from pathlib import Path

from drl_cli.algos.base import load_algorithm
from drl_cli.metrics.console import Console
from drl_cli.replay.tables import make_table, share_of
from drl_cli.runtime.batch_normalizer import BatchNormalizer
from drl_cli.runtime.checkpoint import load_model
from drl_cli.runtime.config import Config
from drl_cli.runtime.errors import RoleLost
from drl_cli.runtime.handles import Handle, LocalRuntime, RayRuntime, Runtime
from drl_cli.runtime.manage import Manage
from drl_cli.runtime.manage_link import ManageLink
from drl_cli.runtime.normalization import normalized
from drl_cli.runtime.orchestrator import Orchestrator
from drl_cli.runtime.parameter_server import ParameterServer
from drl_cli.runtime.progress import Progress
from drl_cli.runtime.rate_limiter import Limiter, QueueLimiter, RateLimiter, required_band
from drl_cli.runtime.replay_shards import ReplayShards
from drl_cli.runtime.trainer import Trainer
from drl_cli.runtime.trajectory_manager import TrajectoryManager
from drl_cli.runtime.worker import Worker
from drl_cli.runtime.worker_pool import WorkerPool
from drl_cli.runtime.worker_proxy import WorkerProxy
from drl_cli.types import Array, EnvSpec, transition_schema
from drl_cli.utils.group import Group
from drl_cli.utils.seeding import generator, integers

log = logging.getLogger(__name__)


def build(
    config: Config,
    spec: EnvSpec,
    folder: Path,
    ray: RayRuntime | None,
    ray_is_up: Callable[[], bool],
    progress: Progress,
    console: Console,
) -> Orchestrator:
    """Put the roles where the mode wants them and connect them; `ray` is None for a run in this process alone."""
    local = LocalRuntime()
    core: Runtime = ray if ray and config.mode == "async" else local
    edge: Runtime = ray if ray and config.mode != "single" else local
    aside: Runtime = ray or local

    weights = load_model(Path(config.load_weights))[0] if config.load_weights else None
    trainer = core.spawn("trainer", make_trainer, config, spec, weights)
    shards = [core.spawn(f"replay {i}", make_replay, config, spec, i) for i in range(config.num_shards)]
    replay = ReplayShards(shards, generator(config.seed, "shard"))
    server = core.spawn("parameter server", ParameterServer)
    pool = make_pool(config, spec, edge)

    def spawn_manage(wait: bool) -> Handle | None:
        if not wait and not ray_is_up():
            return None
        parts = (config, spec, folder, progress.started)
        try:
            return aside.spawn("manage", Manage, *parts)
        except RoleLost as error:
            if config.mode != "single":
                raise
            log.warning("%s; evaluations run in this process and training waits for them", error)
            return local.spawn("manage", Manage, *parts)

    manage = ManageLink(spawn_manage, config.manage.max_restarts)
    rows = config.rows_per_collect * config.num_workers // len(pool.members)
    return Orchestrator(
        config, pool, replay, trainer, server, manage, edge.put, rows,
        make_limiter(config), progress, console,
    )  # fmt: skip


def make_pool(config: Config, spec: EnvSpec, runtime: Runtime) -> WorkerPool:
    """Workers, or proxies that each hold an equal share of them; one looks like the other."""

    def spawn_worker(index: int, incarnation: int) -> Handle:
        return runtime.spawn(f"worker {index}", Worker, config, spec, index, incarnation)

    def spawn_proxy(index: int, incarnation: int) -> Handle:
        return runtime.spawn(f"proxy {index}", make_proxy, config, spec, runtime, index, incarnation)

    if config.worker.proxies:
        return WorkerPool("proxy", config.worker.proxies, spawn_proxy, config.worker.max_restarts)
    return WorkerPool("worker", config.num_workers, spawn_worker, config.worker.max_restarts, 0, config.worker.fetch)


def make_proxy(config: Config, spec: EnvSpec, runtime: Runtime, index: int, incarnation: int) -> WorkerProxy:
    """A proxy and its workers, on its node; no worker of a restarted proxy repeats an incarnation."""
    share = config.num_workers // config.worker.proxies
    lives = incarnation * (config.worker.max_restarts + 1)

    def spawn(worker: int, worker_incarnation: int) -> Handle:
        return runtime.spawn(f"worker {worker}", Worker, config, spec, worker, lives + worker_incarnation)

    pool = WorkerPool("worker", share, spawn, config.worker.max_restarts, index * share, config.worker.fetch)
    window = config.orchestrator.gather_window_s if config.mode == "async" else None
    return WorkerProxy(pool, runtime, window)


def make_replay(config: Config, spec: EnvSpec, shard: int) -> TrajectoryManager:
    """One shard of the replay table."""
    schema = transition_schema(spec, load_algorithm(config.algo.name).Policy.extra_columns)
    share, rng = share_of(config.replay, shard, config.num_shards), generator(config.seed, "replay", shard)
    table = make_table(share, schema, rng, config.num_updates // config.num_shards)
    return TrajectoryManager(table, shard, normalized(config, spec))


def make_trainer(config: Config, spec: EnvSpec, weights: Array | None = None) -> Trainer:
    """The learner, on its device; it starts from the policy in `weights`, where they are given."""
    (seed,) = integers(config.seed, "trainer", 1)
    algorithm = load_algorithm(config.algo.name).Algorithm
    layout = normalized(config, spec)
    trainer = Trainer(
        lambda learner: algorithm(config.algo, config.network, spec, seed, learner),
        config.device,
        config.precision,
        config.trainer.threads,
        Group(),
        BatchNormalizer(layout) if layout else None,
    )
    if weights is not None:
        trainer.load_policy(weights)
    return trainer


def make_limiter(config: Config) -> Limiter:
    """The limiter; `orchestrator.band=null` is wide enough for every worker and two train calls to be in flight."""
    if config.is_on_policy:
        return QueueLimiter(config.trainer.batch_size, 1)
    pace = config.orchestrator
    in_flight = config.num_workers * config.rows_per_collect
    band = pace.band or 2 * required_band(pace.sample_insert_ratio, in_flight, 2 * config.updates_per_call)
    return RateLimiter(pace.sample_insert_ratio, pace.min_inserts, band, free=pace.limiter == "none")
