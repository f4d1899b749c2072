"""The graph: every role, and which handle each is given. Read it top to bottom, as the data flows.

worker ..N --1--> proxy --2--> ORCHESTRATOR --3--> trajectory manager --4--> trainer ..T
   ^                ^               | ^                    ^                   | |
   '------8---------'-------7-------' '---------6----------|-------------------' |
                                    |                      '--------5------------'
                                    '--> parameter server, manage
"""

import logging
from collections.abc import Callable
from pathlib import Path

from drl_cli.algos.lookup import load_algorithm
from drl_cli.errors import RoleLost
from drl_cli.metrics.console import Console
from drl_cli.optim.group import Context, ProcessGroup
from drl_cli.optim.products import make_products
from drl_cli.replay.config import FifoConfig, SequencesConfig, UniformConfig
from drl_cli.replay.frame_table import FrameTable, reference_schema
from drl_cli.replay.frames import make_codec
from drl_cli.replay.tables import make_table, share_of
from drl_cli.runtime.config import Config
from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.edges.trainer_group import TrainerGroup, roles
from drl_cli.runtime.edges.worker_pool import WorkerPool
from drl_cli.runtime.files.checkpoint import load_model
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.orchestrator import Orchestrator
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import Limiter, QueueLimiter, RateLimiter, required_band
from drl_cli.runtime.place.handles import Handle, LocalRuntime, RayRuntime, Runtime
from drl_cli.runtime.roles.batch_normalizer import BatchNormalizer
from drl_cli.runtime.roles.manage import Manage
from drl_cli.runtime.roles.normalization import normalized
from drl_cli.runtime.roles.parameter_server import ParameterServer
from drl_cli.runtime.roles.trainer import Trainer, choose_device
from drl_cli.runtime.roles.trajectory_manager import TrajectoryManager
from drl_cli.runtime.roles.worker import Worker, row_schema
from drl_cli.runtime.roles.worker_proxy import WorkerProxy
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.lazy import torch
from drl_cli.utils.seeding import generator, integers

log = logging.getLogger(__name__)

PATIENCE = 1.5
"""A worker may be late by this many `worker.step_timeout_s`: after one of them it replaces the environment itself."""


def build(
    config: Config,
    spec: EnvSpec,
    folder: Path,
    progress: Progress,
    console: Console,
    *,
    ray: RayRuntime | None,
    incarnation: int = 0,
    health: Callable[[], str | None] = lambda: None,
) -> Orchestrator:
    """Put the roles where the mode wants them and connect them; without `ray`, all in this process.

    The workers begin with this incarnation: a resumed run's are not those that it had before.
    """
    local = LocalRuntime()
    core: Runtime = ray if ray and config.mode == "async" else local
    edge: Runtime = ray if ray and config.mode != "single" else local
    aside: Runtime = ray or local

    trainers = make_trainers(config, spec, core if config.trainer.num == 1 else edge)
    pool = make_pool(config, spec, edge, incarnation)  # these two first: on Ray processes for as many cores are ready
    shards = [core.spawn(f"replay {i}", make_replay, config, spec, i) for i in range(config.num_shards)]
    replay = ReplayShards(shards, generator(config.seed, "shard"))
    server = core.spawn("parameter server", ParameterServer)

    def spawn_manage(wait: bool) -> Handle | None:
        if not wait and ray is not None and not ray.is_up():
            return None
        parts = (config, spec, folder, progress.started - progress.wall_before_s)
        try:
            return aside.spawn("manage", Manage, *parts, concurrent=("evaluate",))  # a report must not wait
        except RoleLost as error:
            if config.mode != "single":
                raise
            log.warning("%s; evaluations run in this process and training waits for them", error)
            return local.spawn("manage", Manage, *parts)

    def on_evaluation(report: EvalReport) -> None:
        progress.evaluated(report)
        console.evaluation(report.statistics, report.params_header.env_steps, report.is_best)

    restarts, stall_s = config.manage.max_restarts, config.orchestrator.stall_s
    manage = ManageLink(spawn_manage, server, restarts, on_evaluation, stall_s)
    edges = Edges(pool, replay, trainers, server, manage, share=edge.put)
    return Orchestrator(config, edges, make_limiter(config), progress, console, folder, health)


def make_pool(config: Config, spec: EnvSpec, runtime: Runtime, incarnation: int = 0) -> WorkerPool:
    """Workers, or proxies that each hold an equal share of them; one looks like the other.

    No worker has an incarnation below the one given.
    """
    num, restarts = config.num_proxies or config.num_workers, config.worker.max_restarts

    def node(index: int) -> str | None:
        """Members are spread over the nodes in order."""
        return runtime.nodes[index * len(runtime.nodes) // num] if runtime.nodes else None

    def spawn_worker(index: int, incarnation: int) -> Handle:
        return runtime.spawn(f"worker {index}", Worker, config, spec, index, incarnation, node=node(index))

    def spawn_proxy(index: int, incarnation: int) -> Handle:
        role = f"proxy {index}"
        return runtime.spawn(role, make_proxy, config, spec, runtime, index, incarnation, node=node(index))

    if config.num_proxies:
        lives = -(-incarnation // (restarts + 1))
        patience = 2 * PATIENCE * config.worker.step_timeout_s + START_S  # it may have to replace a worker meanwhile
        share = config.num_workers // num
        return WorkerPool("proxy", num, spawn_proxy, restarts, share=share, timeout_s=patience, incarnation=lives)
    fetch, timeout_s = config.worker.fetch, PATIENCE * config.worker.step_timeout_s
    return WorkerPool("worker", num, spawn_worker, restarts, fetch=fetch, timeout_s=timeout_s, incarnation=incarnation)


def make_proxy(config: Config, spec: EnvSpec, runtime: Runtime, index: int, incarnation: int) -> WorkerProxy:
    """A proxy and its workers, on its node; no worker of a restarted proxy repeats an incarnation."""
    share = config.num_workers // config.num_proxies
    lives = incarnation * (config.worker.max_restarts + 1)

    def spawn(worker: int, worker_incarnation: int) -> Handle:
        return runtime.spawn(f"worker {worker}", Worker, config, spec, worker, lives + worker_incarnation)

    worker, first, timeout_s = config.worker, index * share, PATIENCE * config.worker.step_timeout_s
    pool = WorkerPool("worker", share, spawn, worker.max_restarts, first=first, fetch=worker.fetch, timeout_s=timeout_s)
    window = config.orchestrator.gather_window_s if config.mode == "async" else None
    return WorkerProxy(pool, runtime, window)


def make_replay(config: Config, spec: EnvSpec, shard: int) -> TrajectoryManager:
    """One shard of the replay table."""
    share, rng = share_of(config.replay, shard, config.num_shards), generator(config.seed, "replay", shard)
    num_batches, schema, stackings = config.batches_per_shard, row_schema(config, spec), config.stackings(spec)
    table = make_table(share, reference_schema(schema, stackings), rng, num_batches)
    if stackings and isinstance(share, UniformConfig):
        table = FrameTable(table, stackings, make_codec(share.compress))
    return TrajectoryManager(table, shard, normalized(config, spec), config.num_shards)


def make_trainers(config: Config, spec: EnvSpec, runtime: Runtime) -> TrainerGroup:
    """The learners, each with a GPU of its own where there are enough."""
    num = config.trainer.num
    gpus = 1 if config.device != "cpu" and runtime.gpus() >= num else 0
    device = "cpu" if config.device == "auto" and num > 1 and not gpus else config.device
    weights = load_model(Path(config.load_weights))[0] if config.load_weights else None
    parts = [(config, spec, device, rank, weights) for rank in range(num)]
    names = zip(roles(num), parts, strict=True)
    return TrainerGroup([runtime.spawn(role, make_trainer, *part, gpus=gpus) for role, part in names])


def make_trainer(config: Config, spec: EnvSpec, device: str, rank: int, weights: Array | None = None) -> Trainer:
    """A learner, on its device; all start from the same seed, or from the policy in `weights`."""
    torch.set_num_threads(config.num_threads)
    torch.set_float32_matmul_precision("highest")
    (seed,) = integers(config.seed, "trainer", 1)
    torch.manual_seed(seed)  # nothing here draws from torch's own generator; an algorithm of the user's may
    algorithm = load_algorithm(config.algo.name).Algorithm
    layout, where = normalized(config, spec), choose_device(device)
    context = Context(
        where,
        ProcessGroup(rank, config.trainer.num, config.orchestrator.stall_s),
        skips=config.trainer.on_nonfinite == "skip",
        products=make_products(config.trainer.products, config.precision, where, measures=config.measures_products),
        compiles=config.trainer.compile,
        optimizer=config.optimizer,
        total_env_steps=config.total_env_steps,
        burn_in=config.replay.burn_in if isinstance(config.replay, SequencesConfig) else 0,
    )
    trainer = Trainer(
        lambda context: algorithm(config.algo, config.network, spec, seed, context),
        context,
        BatchNormalizer(layout) if layout else None,
    )
    if weights is not None:
        trainer.load_policy(weights)
    return trainer


def make_limiter(config: Config) -> Limiter:
    """The limiter; `orchestrator.band=null` is twice what it takes for all workers and two train calls to be in flight.

    The other half is for times that vary: either side may be late once without the other having to wait.
    """
    pace, replay = config.orchestrator, config.replay
    if isinstance(replay, FifoConfig):
        return QueueLimiter(config.trainer.batch_size, max(1, replay.max_staleness), free=pace.limiter == "none")
    in_flight = config.num_workers * config.rows_per_collect
    band = pace.band or 2 * required_band(pace.sample_insert_ratio, in_flight, 2 * config.updates_per_call)
    return RateLimiter(pace.sample_insert_ratio, pace.min_inserts, band, free=pace.limiter == "none")
