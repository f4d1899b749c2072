"""Functions that create the object of a role from the config. Each runs in the process of the role."""

import math
from collections.abc import Sequence

import numpy as np

from drl_cli.algos.context import AlgoContext
from drl_cli.algos.lookup import load_algorithm
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.chains.when import PaysOff, When
from drl_cli.config.config import Config
from drl_cli.config.rows import fits, has_step_states, row_schema, stackings_of, with_whole_table
from drl_cli.data.dataset import BestEpisodes, Dataset
from drl_cli.data.open import open_datasets
from drl_cli.envs.goals import GoalOutcome
from drl_cli.optim.products import make_products
from drl_cli.replay.base import Table
from drl_cli.replay.fifo import LEAST_AUTO
from drl_cli.replay.frame_table import FrameTable, reference_schema
from drl_cli.replay.frames import make_codec
from drl_cli.replay.tables import MixedTable
from drl_cli.replay.windows import HindsightTable, WindowTable
from drl_cli.run_folder.checkpoint import Weights
from drl_cli.runtime.orchestrator.rate_limiter import (
    REUSE,
    Limiter,
    QueueLimiter,
    RateLimiter,
    ReadLimiter,
    required_band,
)
from drl_cli.runtime.roles.normalization import BatchNormalizer, Layout, make_layout
from drl_cli.runtime.roles.reader import SHARE, Reader
from drl_cli.runtime.roles.trainer import Trainer
from drl_cli.runtime.roles.trajectory_manager import TrajectoryManager
from drl_cli.types import EnvSpec, LoadParams
from drl_cli.utils.lazy import torch
from drl_cli.utils.moments import RunningMoments
from drl_cli.utils.seeding import generator, integers

WORTH_A_WAIT = 200_000
"""A run with this many updates or more waits for a compilation, which saves at least 0.1 ms in each update."""


def make_replay(config: Config, spec: EnvSpec, shard: int) -> TrajectoryManager:
    """Create the trajectory manager of one replay shard."""
    layout, stackings = make_layout(config, spec), stackings_of(config, spec)
    table = make_table(config, spec, shard)
    if stackings:
        table = FrameTable(table, stackings, make_codec(config.replay.frame_codec), config.replay.shares_frames)
    if not config.mixes_data:
        return TrajectoryManager(table, shard, layout, config.num_shards, trainers_write=config.writes)
    mixed, moments = mix_data(config, spec, table, layout)
    manager = TrajectoryManager(mixed, shard, layout, config.num_shards, trainers_write=config.writes)
    manager.moments = moments
    return manager


def make_table(config: Config, spec: EnvSpec, shard: int, role: str = "replay") -> Table:
    """Create the table of one replay shard, or with the role "data" of a dataset that is mixed with the run's own rows.

    Stacked images are columns with the ids of their frames.
    """
    replay, rng = config.replay.share(shard, config.num_shards), generator(config.seed, role, shard)
    if config.is_offline or role == "data":
        replay = replay.without_ages()
    columns, most = reference_schema(row_schema(config, spec), stackings_of(config, spec)), config.most_inserts
    table = replay.make_table(columns, rng, batches_per_shard(config), most, config.algo.gamma, config.algo.n_step)
    table.returns_ids = config.writes or config.reanalyzer.num > 0
    if isinstance(table, WindowTable):
        if config.reanalyzer.num:
            table.track_ages()
        table.has_step_states = has_step_states(config)
    if isinstance(table, HindsightTable):
        table.outcome = GoalOutcome(config.env)
    return table


def batches_per_shard(config: Config) -> int:
    """Return a lower bound (mean - 4 std) on a run's batches from one shard. Each call draws from a random shard."""
    searched = (
        config.reanalyzer.ratio * max(0, config.total_env_steps - config.min_inserts) if config.reanalyzer.num else 0
    )
    share = (config.num_updates + int(searched // config.reanalyzed_per_call)) // config.num_shards
    return share if config.num_shards == 1 else max(0, share - 4 * math.isqrt(share))


def mix_data(
    config: Config, spec: EnvSpec, own: Table, layout: Layout | None
) -> tuple[MixedTable, RunningMoments | None]:
    """Read the dataset into a table of its own. Return both tables as one, and the moments of the recorded rows."""
    dataset = opened(config)
    assert dataset is not None
    config = with_whole_table(config, dataset)
    recorded = make_table(config, spec, 0, "data")
    moments = None if layout is None else RunningMoments.empty(layout.size)
    reader = Reader(config, spec, dataset)
    while recorded.inserts < dataset.facts.steps:
        header, columns = reader.collect(LoadParams(-1, 0, 0))
        recorded.insert(columns, np.full(header.rows, -1))
        if layout is not None and moments is not None:
            moments = moments.merge(layout.moments(columns))
    reader.close()
    return MixedTable(own, recorded, config.data.share), moments


def make_trainer(config: Config, spec: EnvSpec, device: str, rank: int, weights: Weights | None = None) -> Trainer:
    """Create a trainer on its device. All trainers start from the same seed, or from the `weights` of another run.

    The checks before a run replace the device `auto`. Without them, it is the CPU.
    """
    torch.set_num_threads(config.trainer.num_threads)
    torch.set_float32_matmul_precision("highest")
    (seed,) = integers(config.seed, "trainer", 1)
    torch.manual_seed(seed)  # because a user's algorithm may use torch's global generator
    algorithm = load_algorithm(config.algo.name).Algorithm
    layout, torch_device = make_layout(config, spec), torch.device("cpu" if device == "auto" else device)
    when = make_when(config, torch_device)
    context = AlgoContext(
        torch_device,
        ProcessGroup(rank, config.trainer.num, config.orchestrator.stall_s),
        skips=config.trainer.on_nonfinite == "skip",
        products=make_products(config.trainer.products, config.precision, torch_device, config.is_repeatable),
        compiles=config.trainer.compile is True and when is None,
        chain=when,
        replays=config.trainer.compile is not False and torch_device.type == "cpu",
        optimizer=config.optimizer,
        reward=config.reward,
        clock=config.clock,
        burn_in=config.replay.steps.burn_in if config.replay.steps else 0,
    )
    trainer = Trainer(
        lambda context: algorithm(config.algo, config.network, spec, seed, context),
        context,
        BatchNormalizer(layout, config.is_on_policy) if layout else None,
        stackings_of(config, spec) if config.replay.shares_frames else {},
    )
    if weights is not None:
        trainer.load_policy(weights.policy)
        if weights.networks:
            trainer.load_networks(weights.networks)  # if they do not fit, check_weights has said so before the start
    return trainer


def make_when(config: Config, device: "torch.device") -> When | None:
    """Return when whole updates are compiled. None: never, as on GPUs.

    Several trainers have to record and compile the same updates. They have no common clock for `auto` in async, and
    minibatches of rollouts may have other sizes in each trainer.
    """
    choice, is_alone = config.trainer.compile, config.trainer.num == 1
    if choice in (False, "replay") or device.type != "cpu" or (config.is_on_policy and not is_alone):
        return None
    if config.is_repeatable:  # decided by facts that repeat, because the compiled program rounds in another way
        return When("before") if choice is True or planned_updates(config) >= WORTH_A_WAIT else None
    if choice is True:
        return When("beside")
    return When("beside", PaysOff(planned_updates(config))) if is_alone else None


def planned_updates(config: Config) -> int:
    """Return the number of gradient steps of a whole run, about."""
    if not config.is_on_policy:
        return config.num_updates
    epochs, size = getattr(config.algo, "epochs", 1), getattr(config.algo, "minibatch_size", None)
    return config.total_env_steps * config.replay.servings * epochs // (size or config.trainer.batch_size)


def make_limiter(config: Config, dataset: Dataset | None = None) -> Limiter:
    """Create the limiter. Without workers, it needs the dataset.

    If `orchestrator.band` is null, the band is twice as wide as the calls in flight require.

    With this width, workers need not wait after one late train call, nor trainers after one late collect call.
    """
    if config.is_offline:
        assert dataset is not None
        return make_read_limiter(config, dataset)
    pace, is_free = config.orchestrator, config.orchestrator.limiter == "none"
    if config.is_on_policy:
        ahead = config.replay.batches_ahead(config.versions_per_batch)
        return QueueLimiter(config.trainer.batch_size, ahead, free=is_free, times=config.replay.servings)
    band = make_band(config, [config.num_workers])
    return RateLimiter(pace.sample_insert_ratio, config.min_inserts, band, free=is_free)


def make_band(config: Config, shares: Sequence[int]) -> float:
    """Return the width of the band for members with these numbers of workers."""
    pace, rows = config.orchestrator, config.rows_per_collect
    if pace.band is not None:  # still wide enough for a larger proxy, which may have joined
        return max(pace.band, required_band(pace.sample_insert_ratio, max(shares) * rows, config.updates_per_call))
    return 2 * required_band(pace.sample_insert_ratio, sum(shares) * rows, 2 * config.updates_per_call)


def adapt(limiter: Limiter, config: Config, shares: Sequence[int]) -> None:
    """Fit a limiter to proxies with these numbers of workers: no worker waits, and none runs further ahead."""
    if isinstance(limiter, RateLimiter):
        limiter.band = make_band(config, shares)
    elif isinstance(limiter, QueueLimiter):
        batches = -(-sum(shares) * config.rows_per_collect // config.trainer.batch_size)
        limiter.ahead = min(max(LEAST_AUTO, batches), config.replay.batches_ahead(config.versions_per_batch))


def make_read_limiter(config: Config, dataset: Dataset) -> ReadLimiter:
    """Create the limiter of a run without workers, which fills the table before the first update.

    A dataset that does not fit into the table is read again and again: each row is drawn about REUSE times before it
    is overwritten, and less often if the run would otherwise end before the end of the dataset.
    """
    steps, total, size = dataset.facts.steps, config.total_updates, config.trainer.batch_size
    if fits(config, dataset):
        return ReadLimiter(total, steps)
    fill = max(1, config.replay.num_transitions * (SHARE - 1) // SHARE)
    return ReadLimiter(total, fill, min(size, max(size / REUSE, (steps - fill) / total)))


def opened(config: Config, is_checked: bool = True) -> Dataset | None:
    """Open the dataset of a run. Unless it `is_checked`, read it once. Return None for a run without a dataset.

    An algorithm with the option `top` gets only this share of the episodes, those with the largest returns.
    """
    if not config.data.sources:
        return None
    data, env = config.data, config.env if config.has_env else None
    dataset = open_datasets(data.sources, env, is_checked=is_checked, download=data.download)
    algo = config.algo
    return BestEpisodes(dataset, algo.top) if hasattr(algo, "top") and algo.top < 1.0 else dataset
