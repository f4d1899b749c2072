"""The checks before a run starts, in order; memory, processes, GPU, compiler and disk; and what is recorded."""

import errno
import inspect
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from drl_cli.config.config import Config
from drl_cli.data.dataset import Dataset
from drl_cli.errors import MISSING, RESOURCES, USAGE, USER_CODE, Problems, UsageError
from drl_cli.preflight.algorithm import (
    check_network,
    check_priorities,
    check_weights,
    check_writes,
    no_memory,
    try_algorithm,
)
from drl_cli.preflight.environment import (
    check_data,
    check_evaluation,
    check_goals,
    environment_spec,
    open_data,
    try_environment,
    warn_of_single_images,
)
from drl_cli.preflight.pace import pace_problems, reanalysis_problems, trainer_problems, worker_problems
from drl_cli.preflight.unread import unread_keys
from drl_cli.replay.frames import make_codec
from drl_cli.replay.store import row_bytes
from drl_cli.runs.start_text import WORKER_BYTES
from drl_cli.settings.algorithm import refusal
from drl_cli.settings.fill import check_fits, check_gpus, replay_bytes, with_capacity, with_table
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils import gpu
from drl_cli.utils.machine import compiler, free_memory, num_cores
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object, source_file
from drl_cli.utils.shown import tell

RECORDER = ("record", "close"), ["run"]
EVALUATOR = ("evaluate", "close"), ["config", "spec", "seeds"]
"""The methods that a user's evaluator class must have, and the arguments of its constructor."""


def check_recording(config: Config) -> None:
    """Raise UsageError if a recorder's package is missing, or if a user's recorder or evaluator is unsuitable."""
    for package, value in (("wandb", config.logger.wandb), ("mlflow", config.logger.mlflow)):
        if value != "none" and source_file(package) is None:
            line = f"logger.{package}={value} needs a package that is not installed:  pip install 'drl-cli[{package}]'"
            raise UsageError(line, MISSING)
    if (uri := config.logger.mlflow) not in ("none", "offline", "databricks") and "://" not in uri:
        raise UsageError(f"logger.mlflow: must be none, offline or a tracking server's URI (http://...), got {uri}")
    classes = [("logger.recorders", path, RECORDER) for path in config.logger.recorders]
    if config.manage.evaluator is not None:
        classes.append(("manage.evaluator", config.manage.evaluator, EVALUATOR))
    problems, raised = list[str](), list[str]()
    for key, path, (methods, arguments) in classes:
        try:
            problems += [f"{key}: {problem}" for problem in _class_problems(path, methods, arguments)]
        except ModuleRaised as error:
            raised.append(f"{key}: {error}")
    if problems or raised:
        raise UsageError([*problems, *raised], USAGE if problems else USER_CODE)


def _class_problems(path: str, methods: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return error lines if the class at an import path lacks a method, or can't be called with these arguments."""
    try:
        make = import_object(path)
    except NotFound as error:
        return [str(error)]
    if not callable(make):
        return [f"{path} is not a class and can't be called"]
    try:
        with suppress(ValueError):  # raised for a class without a signature, which may be written in C
            inspect.signature(make).bind(*arguments)
    except TypeError as error:
        return [f"{path} must accept ({', '.join(arguments)}): {error}"]
    lacking = [method for method in methods if isinstance(make, type) and not callable(getattr(make, method, None))]
    return [f"{path} has no method {' and no '.join(lacking)} (docs/recording.md)"] if lacking else []


NETWORK_COPIES = 8
"""Minimum number of copies of the weights, such as gradients, optimizer state, critics, targets, published policy."""
MOST_PER_CORE = 4
"""With more workers for each core there is a warning. Environments that wait, such as a simulator's, may need more."""
ENV_BYTES = 5000
"""Minimum memory [bytes] of an environment: measured for CartPole-v1, which has one of the smallest."""
MIN_DISK_BYTES = 50 * 2**20
"""Minimum free space for a new run. A resumed run already has its files, and removes its own old ones first."""


def check_resources(config: Config, spec: EnvSpec, free: int) -> None:
    """Raise UsageError if replay, processes or network need more than `free` bytes, or if output_dir isn't writable."""
    config = with_capacity(config, spec)
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


def check_workers(config: Config, free: int, cores: int) -> None:
    """Raise UsageError if the processes of the workers, or their environments, don't fit in `free` bytes.

    Print a warning if there are many more processes than processor cores.
    """
    if config.ray.address is not None:
        return
    num, envs = config.num_workers, config.worker.envs
    if not config.is_one_process and not config.debug.in_process:
        advice = f"this machine has {cores} cores; say worker.num=N with fewer, or leave it out"
        check_fits(f"worker.num={num}", num * WORKER_BYTES, free, advice)
        if num > MOST_PER_CORE * cores:
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


def preflight_with_data(config: Config, words: Sequence[str]) -> tuple[EnvSpec, Dataset | None]:
    """Open the dataset, if the run has one, and return what `preflight` returns, and the dataset.

    Raise UsageError with the problems of both.
    """
    problems, dataset = Problems(), None
    with problems.collect():
        dataset = open_data(config)
    with problems.collect():
        spec = preflight(config, words, dataset)
    problems.report()
    return spec, dataset


def preflight(config: Config, words: Sequence[str] = (), dataset: Dataset | None = None) -> EnvSpec:
    """Return the environment's spec. Raise UsageError, with the problems of all checks, if the run can't start.

    `words` are the words that the user typed. A key in them that the run does not read is a problem. Without workers,
    the run learns from `dataset`.
    """
    # first, because other problems of a huge number of workers would hide this one
    check_workers(config, free_memory(), num_cores())
    problems, unread = Problems(), unread_keys(config, words)
    with problems.collect():
        if unread:
            raise UsageError(unread)
    with problems.collect():
        spec = environment_spec(config) if config.has_env or dataset is None else dataset.spec
        for note in spec.notes:
            tell(f"warning: {note}")
        is_recurrent, typed, replay = config.network.memory != "none", config.algo_name, config.replay.option
        given = (config.algo.name, spec, config.mode, config.replay.table, is_recurrent)
        if problem := refusal(*given, typed=typed, replay=replay):
            raise UsageError([problem, *filter(None, [no_memory(config)])])
        if lines := [line for line in unread_keys(config, words, spec) if line not in unread]:
            raise UsageError(lines)
        check_network(config, spec)
        check_goals(config, spec)
        warn_of_single_images(config, spec)
        check_writes(config, spec)
        if dataset is not None:
            check_data(config, spec, dataset)
    with problems.collect():  # later, because what the algorithm can't do matters more
        checks = (pace_problems, trainer_problems, worker_problems, reanalysis_problems)
        if lines := [line for check in checks for line in check(config)]:
            raise UsageError(lines)
    for check in (check_priorities, check_recording, check_hardware):
        with problems.collect():
            check(config)
    problems.report()
    check_evaluation(config, spec)
    check_weights(config, spec)
    check_resources(config if dataset is None else with_table(config, spec, dataset), spec, free_memory())
    if config.has_env:
        try_environment(config, spec)
    try_algorithm(config, spec)
    return spec
