"""Checks before a run: try or compute whatever can fail, before any process or folder is created."""

from collections.abc import Sequence

from drl_cli.data.dataset import Dataset
from drl_cli.errors import Problems, UsageError
from drl_cli.preflight.algorithm import (
    check_network,
    check_priorities,
    check_writes,
    no_memory,
    try_algorithm,
    warn_of_slow_updates,
)
from drl_cli.preflight.data import check_data, open_data
from drl_cli.preflight.environment import (
    check_evaluation,
    check_goals,
    environment_spec,
    try_environment,
    warn_of_single_images,
)
from drl_cli.preflight.pace import pace_problems, reanalysis_problems, trainer_problems, worker_problems
from drl_cli.preflight.recording import check_recording
from drl_cli.preflight.resources import check_hardware, check_resources, check_workers
from drl_cli.preflight.unread import unread_keys
from drl_cli.preflight.weights import check_weights
from drl_cli.runtime.config import Config
from drl_cli.settings.algorithm import refusal
from drl_cli.settings.fill import with_table
from drl_cli.types import EnvSpec
from drl_cli.utils.run_log import tell

LARGE_BATCH = 2**16
"""If the batch has more rows, an update is timed before every run, otherwise only in a dry run."""


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
    check_workers(config)  # first, because other problems of a huge number of workers would hide this one
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
    check_resources(config if dataset is None else with_table(config, spec, dataset), spec)
    if config.has_env:
        try_environment(config, spec)
    try_algorithm(config, spec)
    return spec


def try_update(config: Config, spec: EnvSpec) -> None:
    """In a dry run, and for a large batch, make an update on the run's device. Warn if it is slow.

    Raise UsageError if the update fails. Call this after all other checks: CUDA forbids a fork after its first use.
    """
    if config.dry_run or config.trainer.batch_size > LARGE_BATCH:
        warn_of_slow_updates(config, spec)
