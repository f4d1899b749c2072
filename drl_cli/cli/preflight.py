"""What must hold before anything starts: the pace can't deadlock, the spaces fit, memory and disk suffice."""

import dataclasses
import os
import shutil
from pathlib import Path

import psutil

from drl_cli.algos.base import load_algorithm, refusal
from drl_cli.cli.errors import MISSING, RESOURCES, USER_CODE, UsageError
from drl_cli.cli.weights import check_weights, find_weights
from drl_cli.envs.config import EnvError, MissingExtra
from drl_cli.replay.store import row_bytes
from drl_cli.runtime.config import Config
from drl_cli.runtime.exploration import exploration_problems
from drl_cli.runtime.rate_limiter import required_band
from drl_cli.types import EnvSpec, transition_schema


def fill(config: Config) -> Config:
    """The config with what depends on this machine filled in."""
    if config.load_weights is not None:
        config = dataclasses.replace(config, load_weights=str(find_weights(config.load_weights, config.output_dir)))
    if config.worker.num is not None:
        return config
    num = 1 if config.mode == "single" else max(1, len(os.sched_getaffinity(0)) - 1)
    share = max(1, config.worker.proxies)
    num = max(share, num // share * share)  # proxies have equal shares
    return dataclasses.replace(config, worker=dataclasses.replace(config.worker, num=num))


def preflight(config: Config) -> EnvSpec:
    """Check everything that can be checked without starting; raises UsageError with all problems of a kind."""
    if problems := [*pace_problems(config), *worker_problems(config)]:
        raise UsageError(problems)
    spec = environment_spec(config)
    if problem := refusal(config.algo.name, spec, config.mode, config.replay.sampler):
        raise UsageError(problem)
    if config.env.normalize_obs and spec.obs.dtype == "uint8":
        raise UsageError(f"env.normalize_obs: {spec.id} gives images, which are scaled to [0, 1] anyway; say false")
    check_weights(config, spec)
    check_device(config)
    check_resources(config, spec)
    return spec


def environment_spec(config: Config) -> EnvSpec:
    """The environment's spaces; raises UsageError when it is not there, not usable, or raises."""
    from drl_cli.envs.make import read_spec

    try:
        return read_spec(config.env)
    except MissingExtra as error:
        raise UsageError(str(error), MISSING) from error
    except EnvError as error:
        raise UsageError(str(error)) from error
    except Exception as error:
        raise UsageError(f"{config.env.id} raised {type(error).__name__}: {error}", USER_CODE) from error


def pace_problems(config: Config) -> list[str]:
    """Settings that would never get going, or stop for ever, with their numbers."""
    problems = []
    pace, rows = config.orchestrator, config.rows_per_collect
    if config.replay.capacity < pace.min_inserts:
        problems.append(
            f"replay.capacity={config.replay.capacity} is below orchestrator.min_inserts={pace.min_inserts}: "
            "no update would ever be made"
        )
    if config.block_rows < config.worker.envs:
        problems.append(
            f"worker.block_rows={config.block_rows} is below worker.envs={config.worker.envs}: "
            "a block holds at least one step of every environment"
        )
    if config.worker.proxies and config.num_workers % config.worker.proxies:
        problems.append(
            f"worker.num={config.num_workers} can't be shared equally by worker.proxies={config.worker.proxies}"
        )
        return problems
    members = config.worker.proxies or config.num_workers
    rows = rows * config.num_workers // members
    share = config.replay.capacity // config.num_shards
    if share < rows + config.algo.n_step * config.worker.envs:
        of = f" / replay.shards={config.num_shards}" if config.num_shards > 1 else ""
        problems.append(f"replay.capacity={config.replay.capacity}{of} is below one hand-over of {rows} transitions")
    needed = required_band(pace.sample_insert_ratio, rows, config.updates_per_call)
    if pace.band is not None and pace.band < needed and config.mode == "async":
        problems.append(
            f"orchestrator.band={pace.band:g} is below {needed:g} = sample_insert_ratio {pace.sample_insert_ratio:g} "
            f"x {rows} rows per hand-over + {config.updates_per_call} updates per call: both sides would wait for ever"
        )
    return problems


def worker_problems(config: Config) -> list[str]:
    """Settings of single workers that this mode or algorithm does not allow."""
    module = load_algorithm(config.algo.name)
    problems = exploration_problems(config.worker.exploration, config.algo.name, module.EXPLORATION)
    if config.worker.fetch != "collect" and config.mode != "async":
        problems.append(
            f"worker.fetch={config.worker.fetch}: in mode={config.mode} all workers collect with the newest version, "
            "so that updates and versions keep step; say worker.fetch=collect, or mode=async"
        )
    return problems


def check_device(config: Config) -> None:
    """Raise when cuda is asked for and absent."""
    if config.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("device=cuda, but torch finds no CUDA device here; device=cpu works everywhere", MISSING)


def check_resources(config: Config, spec: EnvSpec) -> None:
    """Raise when the replay can't fit in memory or the output folder can't be written."""
    schema = transition_schema(spec, load_algorithm(config.algo.name).Policy.extra_columns)
    needed, free = row_bytes(schema) * config.replay.capacity, psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"replay.capacity={config.replay.capacity} needs {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB of memory are free; lower it to {free // 2 // row_bytes(schema)}",
            RESOURCES,
        )
    root = Path(config.output_dir).absolute()
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise UsageError(f"output_dir: can't write to {existing}", RESOURCES)
    if shutil.disk_usage(existing).free < 50 * 2**20:
        raise UsageError(f"output_dir: less than 50 MB are free at {existing}", RESOURCES)
