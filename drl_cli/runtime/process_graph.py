"""The graph of a run: create all roles and connect them. The numbers are the routes in messages.py.

worker ..N --1--> proxy --2--> ORCHESTRATOR --3--> trajectory manager --4--> trainer ..T
   ^                ^               | ^                    ^                   | |
   '------8---------'-------7-------' '---------6----------|-------------------' |
                                    |                      '--------5------------'
                                    '--> parameter server, manage

Re-analysers, if any, take the place of a trainer in routes 3 to 5, with parameters from the parameter server.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drl_cli.config.config import Config
from drl_cli.convert.program import Program
from drl_cli.data.dataset import Dataset
from drl_cli.errors import RoleLost
from drl_cli.metrics.console import Console
from drl_cli.run_folder.checkpoint_writer import CheckpointWriter
from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.edges.pool import ReanalyzerPool, WorkerPool
from drl_cli.runtime.edges.replay_shards import ReplayShards
from drl_cli.runtime.factories import adapt, make_limiter, make_replay, make_trainer, opened
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.orchestrator.doubts import doubt
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.node_watch import NodeWatch, Seat
from drl_cli.runtime.orchestrator.orchestrator import Orchestrator
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.place.handles import Handle, LocalRuntime, Where
from drl_cli.runtime.place.ray_runtime import RayRuntime, Runtime
from drl_cli.runtime.roles.manage import Manage
from drl_cli.runtime.roles.normalization import numpy_program
from drl_cli.runtime.roles.parameter_server import ParameterServer
from drl_cli.runtime.roles.reader import Reader
from drl_cli.runtime.roles.reanalyzer import Reanalyzer
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.runtime.roles.worker import Worker
from drl_cli.runtime.roles.worker_proxy import WorkerProxy
from drl_cli.runtime.weights import weights_for
from drl_cli.types import EnvSpec
from drl_cli.utils.machine import Node
from drl_cli.utils.seeding import generator

log = logging.getLogger(__name__)

PATIENCE = 1.5
"""A collect call may take this many step timeouts: after one, the worker replaces a hung environment."""


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
    offers: Callable[[], Sequence[Node]] = tuple,
) -> Orchestrator:
    """Create every role in the process that the mode requires, connect the roles, and return the orchestrator.

    Without `ray`, all roles run in this process. The workers of a resumed run start with a higher `incarnation`.
    `health` returns which process of Ray has died, or None. `offers` returns the nodes that can run workers now; it is
    used if workers come and go with the nodes.
    """
    local = LocalRuntime()
    learning_place: Runtime = ray if ray and config.mode == "async" else local
    worker_place: Runtime = local if ray is None or config.is_one_process else ray
    dataset = opened(config) if config.is_offline else None
    program, form = numpy_program(config, spec)
    if form:
        console.line(f"policy: {form}")

    # Create trainers and workers first, because Ray has one process per core ready for the first roles.
    trainers = make_trainers(config, spec, ray if ray and config.trains_apart else local)
    seats, limiter = make_seats(config, worker_place), make_limiter(config, dataset)
    if dataset is None:
        pool = make_pool(config, spec, worker_place, seats, incarnation, program)
    else:
        pool = make_reader(config, spec, dataset)

    def on_change(shares: Sequence[int]) -> None:
        adapt(limiter, config, shares)
        progress.workers, progress.members = sum(shares), len(shares)

    watch = NodeWatch(config, pool, seats, offers, on_change, progress.usage.forget)
    watch.look()
    modules = config.outside_modules
    shards = [
        learning_place.spawn(f"replay {i}", make_replay, config, spec, i, modules=modules)
        for i in range(config.num_shards)
    ]
    replay = ReplayShards(shards, generator(config.seed, "shard"))
    server = learning_place.spawn("parameter server", ParameterServer)

    def spawn_manage(wait: bool) -> Handle[Manage] | None:
        """Start manage. If `wait` is False and Ray is still starting, return None."""
        if not wait and ray is not None and not ray.is_up():
            return None
        args = (config, spec, folder, progress.started - progress.wall_before_s, program)
        try:
            return (ray or local).spawn("manage", Manage, *args, concurrent=("evaluate",))  # do not delay reports
        except RoleLost as error:
            if not config.is_one_process:
                raise
            log.warning("%s; evaluations run in this process and training waits for them", error)
            return local.spawn("manage", Manage, *args)

    def on_evaluation(report: EvalReport) -> None:
        progress.evaluated(report)
        console.evaluation(report.statistics, config.clock.of(report.params_header), report.is_best)
        before, progress.doubt = progress.doubt, doubt(config, progress, console.status.losses)
        console.update(doubt=progress.doubt)
        if ":" in progress.doubt and not before:  # with a cause; without, the run may still begin to learn
            console.line(progress.doubt)

    restarts, stall_s = config.manage.max_restarts, config.orchestrator.stall_s
    writer = local.spawn("writer", CheckpointWriter, config, folder)
    manage = ManageLink(spawn_manage, server, writer, restarts, on_evaluation, stall_s, evaluates=config.has_env)
    reanalyzers = make_reanalyzers(config, spec, learning_place, incarnation)
    is_cluster = ray is not None and len(ray.nodes) > 0
    edges = Edges(pool, replay, trainers, server, manage, reanalyzers, worker_place.put, is_cluster)
    return Orchestrator(config, edges, limiter, progress, console, folder, health, watch.look)


def make_trainers(config: Config, spec: EnvSpec, runtime: Runtime) -> dict[str, Handle[Trainer]]:
    """Create the trainers, each on a separate GPU if `device` is cuda and there are enough GPUs."""
    num = config.trainer.num
    gpus = 1 if config.device == "cuda" and runtime.gpus() >= num else 0
    weights = weights_for(config, spec, Path(config.load_weights)) if config.load_weights else None
    args, where = (config, spec, config.device), Where(gpus=gpus, modules=config.outside_modules)
    names = ["trainer"] if num == 1 else [f"trainer {rank}" for rank in range(num)]
    return {name: runtime.spawn(name, make_trainer, *args, rank, weights, **where) for rank, name in enumerate(names)}


def make_reanalyzers(config: Config, spec: EnvSpec, runtime: Runtime, incarnation: int = 0) -> ReanalyzerPool:
    """Create the pool of re-analysers, which is empty unless `reanalyzer.num` is set."""

    def spawn(index: int, incarnation: int) -> Handle[Reanalyzer]:
        args, modules = (config, spec, index, incarnation), config.outside_modules
        return runtime.spawn(f"reanalyzer {index}", Reanalyzer, *args, modules=modules)

    options = config.reanalyzer
    stall_s = config.orchestrator.stall_s
    return ReanalyzerPool(
        "reanalyzer", range(options.num), spawn, options.max_restarts, timeout_s=stall_s, incarnation=incarnation
    )


def make_reader(config: Config, spec: EnvSpec, dataset: Dataset) -> WorkerPool:
    """Create a pool whose only member reads the dataset, in this process."""

    def spawn(index: int, incarnation: int) -> Handle[Reader]:
        return LocalRuntime().spawn(f"reader {index}", Reader, config, spec, dataset)

    return WorkerPool("reader", range(1), spawn, config.worker.max_restarts, timeout_s=math.inf)


def make_seats(config: Config, runtime: Runtime) -> dict[int, Seat]:
    """Return the nodes and workers of the proxies that a run begins with: none if proxies join with their nodes."""
    if config.worker.is_elastic or not config.worker.num_proxies:
        return {}
    num, share = config.worker.num_proxies, config.num_workers // config.worker.num_proxies
    return {i: Seat(_node(runtime, i, num), range(i * share, (i + 1) * share)) for i in range(num)}


def make_pool(
    config: Config,
    spec: EnvSpec,
    runtime: Runtime,
    seats: Mapping[int, Seat],
    incarnation: int = 0,
    program: Program | None = None,
) -> WorkerPool:
    """Create the pool of all workers, or of the proxies in these seats. All start at `incarnation` or above."""
    if not config.worker.num_proxies:
        return make_workers(config, spec, runtime, range(config.num_workers), incarnation, program)

    def spawn_proxy(index: int, incarnation: int) -> Handle[WorkerProxy]:
        seat = seats[index]
        args = (config, spec, runtime, seat.workers, incarnation, program)
        return runtime.spawn(f"proxy {index}", make_proxy, *args, node=seat.node)

    pool = WorkerPool(
        "proxy",
        (),
        spawn_proxy,
        config.worker.max_restarts,
        timeout_s=2 * PATIENCE * config.worker.step_timeout_s + START_S,  # a proxy may first replace a worker
        incarnation=-(-incarnation // config.worker.incarnations_per_proxy),
        node_of=lambda index: seats[index].node,
    )
    for index, seat in seats.items():
        pool.join(index, len(seat.workers))
    return pool


def make_proxy(
    config: Config,
    spec: EnvSpec,
    runtime: Runtime,
    workers: Sequence[int],
    incarnation: int,
    program: Program | None = None,
) -> WorkerProxy:
    """Create a proxy and its workers. A restarted proxy starts its workers with higher incarnations than before."""
    pool = make_workers(config, spec, runtime, workers, incarnation * config.worker.incarnations_per_proxy, program)
    return WorkerProxy(pool, runtime, config.orchestrator.gather_window_s if config.mode == "async" else None)


def make_workers(
    config: Config,
    spec: EnvSpec,
    runtime: Runtime,
    indices: Sequence[int],
    incarnation: int,
    program: Program | None = None,
) -> WorkerPool:
    """Create the workers with these indices, on all nodes or, if they belong to a proxy, on the node of the proxy."""

    def node_of(index: int) -> str | None:
        return None if config.worker.num_proxies else _node(runtime, index, config.num_workers)

    def spawn(index: int, incarnation: int) -> Handle[Worker]:
        args, modules = (config, spec, index, incarnation, program), config.outside_modules
        return runtime.spawn(f"worker {index}", Worker, *args, node=node_of(index), modules=modules)

    timeout_s, most = PATIENCE * config.worker.step_timeout_s, config.worker.max_restarts
    pool = WorkerPool("worker", indices, spawn, most, timeout_s=timeout_s, incarnation=incarnation, node_of=node_of)
    pool.fetch = config.worker.fetch
    return pool


def _node(runtime: Runtime, index: int, num: int) -> str | None:
    """Return the node of member `index` of `num`. Each node gets consecutive members."""
    return runtime.nodes[index * len(runtime.nodes) // num] if runtime.nodes else None
