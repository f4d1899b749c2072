"""Whether memory and disk suffice for a run, as far as its config says what it will need."""

import os
import shutil
from itertools import pairwise
from pathlib import Path

import psutil

from drl_cli.errors import RESOURCES, UsageError
from drl_cli.replay.config import UniformConfig
from drl_cli.replay.frame_table import frame_bytes, reference_schema
from drl_cli.replay.store import row_bytes
from drl_cli.replay.tables import share_of, table_bytes
from drl_cli.runtime.config import Config
from drl_cli.types import EnvSpec, leaves

NETWORK_COPIES = 8
"""Of its parameters, at least: gradients, what Adam remembers, a critic or its target, what is published."""
WORKER_BYTES = 60 * 2**20
"""Of a worker's process, at least."""


def check_resources(config: Config, spec: EnvSpec) -> None:
    """Raise when the replay can't fit in memory or the output folder can't be written."""
    needed, free = replay_bytes(config, spec), psutil.virtual_memory().available
    if needed > free:
        fits = config.replay.capacity * free // needed // 2
        raise UsageError(
            f"replay.capacity={config.replay.capacity} needs {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB of memory are free; lower it to {fits}",
            RESOURCES,
        )
    check_processes(config, spec, free)
    root = Path(config.output_dir).absolute()
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise UsageError(f"output_dir: can't write to {existing}", RESOURCES)
    if shutil.disk_usage(existing).free < 50 * 2**20:
        raise UsageError(f"output_dir: less than 50 MB are free at {existing}", RESOURCES)


def check_processes(config: Config, spec: EnvSpec, free: int) -> None:
    """Raise when the workers, the batches under way or the network can't fit in memory."""
    if config.mode != "single" and not config.debug.in_process and config.ray.address is None:
        if (needed := config.num_workers * WORKER_BYTES) > free:
            raise _too_large(
                f"worker.num={config.num_workers}", needed, free, f"lower it to {free // WORKER_BYTES // 2}"
            )
        if config.ray.object_store_mb is not None and (needed := config.ray.object_store_mb * 2**20) > free:
            raise _too_large(f"ray.object_store_mb={config.ray.object_store_mb}", needed, free, "leave it out")
        rows = config.updates_per_call * config.trainer.batch_size
        if (needed := 2 * rows * row_bytes(leaves(spec.obs))) > free:
            raise _too_large(f"trainer.batch_size={config.trainer.batch_size}", needed, free, "lower it")
    hidden = config.network.hidden
    if (needed := NETWORK_COPIES * 4 * sum(a * b for a, b in pairwise(hidden))) > free:
        raise _too_large(f"network.hidden={list(hidden)}", needed, free, "lower it")


def _too_large(setting: str, needed: int, free: int, advice: str) -> UsageError:
    line = f"{setting} needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of memory are free; {advice}"
    return UsageError(line, RESOURCES)


def replay_bytes(config: Config, spec: EnvSpec) -> int:
    """Bytes of the replay table, over all its shards."""
    from drl_cli.runtime.roles.worker import row_schema  # brings gymnasium along

    schema = row_schema(config, spec)
    shares = [share_of(config.replay, shard, config.num_shards) for shard in range(config.num_shards)]
    stackings = config.stackings(spec)
    rows = sum(table_bytes(share, reference_schema(schema, stackings)) for share in shares)
    if not isinstance(config.replay, UniformConfig):
        return rows
    return rows + frame_bytes(stackings, config.replay.capacity, config.replay.compress)
