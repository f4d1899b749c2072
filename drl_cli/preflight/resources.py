"""Checks of this machine: the memory, disk, GPUs, compiler and packages that a config needs."""

import errno
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from drl_cli.errors import MISSING, RESOURCES, UsageError
from drl_cli.replay.frames import make_codec
from drl_cli.replay.store import row_bytes
from drl_cli.runs.start_text import WORKER_BYTES
from drl_cli.runtime.config import Config
from drl_cli.settings.device import check_gpus
from drl_cli.settings.fill import check_fits, replay_bytes, with_capacity
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils import gpu
from drl_cli.utils.machine import compiler, free_memory, num_cores
from drl_cli.utils.run_log import tell

NETWORK_COPIES = 8
"""Minimum number of copies of the weights, such as gradients, optimizer state, critics, targets, published policy."""
MOST_PER_CORE = 4
"""With more workers for each core there is a warning. Environments that wait, such as a simulator's, may need more."""
ENV_BYTES = 5000
"""Minimum memory [bytes] of an environment: measured for CartPole-v1, which has one of the smallest."""
MIN_DISK_BYTES = 50 * 2**20
"""Minimum free space for a new run. A resumed run already has its files, and removes its own old ones first."""


def check_resources(config: Config, spec: EnvSpec) -> None:
    """Raise UsageError if replay, processes or network don't fit in memory, or if the output folder isn't writable."""
    config, free = with_capacity(config, spec), free_memory()
    capacity, needed = config.replay.num_transitions, replay_bytes(config, spec)
    check_fits(f"replay.capacity={capacity}", needed, free, f"lower it to {capacity * free // max(1, needed) // 2}")
    if not config.is_one_process and not config.debug.in_process and config.ray.address is None:
        store_mb, size = config.ray.object_store_mb, config.trainer.batch_size
        check_fits(f"ray.object_store_mb={store_mb}", (store_mb or 0) * 2**20, free, "leave it out")
        batch_bytes = 2 * config.updates_per_call * size * row_bytes(leaves(spec.obs))
        check_fits(f"trainer.batch_size={size}", batch_bytes, free, "lower it")
    hidden = config.network.hidden
    weights = sum(inputs * outputs for inputs, outputs in pairwise(hidden))
    check_fits(f"network.hidden={list(hidden)}", NETWORK_COPIES * 4 * weights, free, "lower it")
    root = Path(config.output_dir).absolute()
    existing = next(path for path in (root, *root.parents) if path.exists())
    _check_writable(existing)
    if config.resume is None and shutil.disk_usage(existing).free < MIN_DISK_BYTES:
        raise UsageError(f"output_dir: less than 50 MB are free at {existing}", RESOURCES)


def _check_writable(folder: Path) -> None:
    """Make a folder below `folder` and remove it. /proc, for example, refuses this even if its permissions allow it."""
    try:
        tempfile.TemporaryDirectory(dir=folder).cleanup()
    except OSError as error:
        if error.errno != errno.ENOSPC:  # the check of the free space has a better line
            line = f"output_dir: can't write to {folder} ({error.strerror}); say output_dir=DIR with another folder"
            raise UsageError(line, RESOURCES) from error


def check_workers(config: Config) -> None:
    """Raise UsageError if the processes of the workers, or their environments, don't fit in memory.

    Print a warning if there are many more processes than processor cores.
    """
    if config.ray.address is not None:
        return
    num, envs, free = config.num_workers, config.worker.envs, free_memory()
    if not config.is_one_process and not config.debug.in_process:
        advice = f"this machine has {num_cores()} cores; say worker.num=N with fewer, or leave it out"
        check_fits(f"worker.num={num}", num * WORKER_BYTES, free, advice)
        if num > MOST_PER_CORE * num_cores():
            tell(f"warning: worker.num={num}: so many processes slow each other down; {advice}")
    check_fits(f"worker.num={num} x worker.envs={envs}", num * envs * ENV_BYTES, free, "say worker.envs=N with fewer")


def check_hardware(config: Config) -> None:
    """Raise UsageError (exit 3) if a GPU, a C++ compiler or the package lz4 is needed but missing."""
    if config.device not in ("auto", "cpu") and config.ray.address is None:
        check_gpus(config, gpu.gpus())
    # on a cluster the trainer may run on another machine
    if config.trainer.compile is True and config.ray.address is None and shutil.which(name := compiler()) is None:
        line = f"trainer.compile=true needs a C++ compiler: there is no {name}. Install one, or name it by CXX=..."
        raise UsageError(line, MISSING)
    try:
        make_codec(config.replay.frame_codec)
    except ModuleNotFoundError as error:
        line = "replay.compress=lz4 needs a package that is not installed:  pip install 'drl-cli[lz4]'"
        raise UsageError(line, MISSING) from error
