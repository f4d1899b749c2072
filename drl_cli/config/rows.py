"""The rows of a run's replay table: their columns, and how many of them a dataset has."""

from dataclasses import replace
from typing import Any

import numpy as np

from drl_cli import types
from drl_cli.algos.lookup import load_algorithm
from drl_cli.config.config import Config
from drl_cli.data.columns import data_schema
from drl_cli.data.dataset import Dataset
from drl_cli.replay.frames import Stacking, make_stackings
from drl_cli.types import Column, EnvSpec, Schema

MOST_OPEN_STEPS = 10_000
"""Upper limit on the steps of an episode that a worker keeps until its return is known."""


def row_schema(config: Config, spec: EnvSpec) -> Schema:
    """Return the columns of a replay row: the algorithm's columns, and `source` (worker and environment)."""
    module, built = load_algorithm(config.algo.name), config.replay.extra_columns()
    extra = module.Policy.extra_columns(config.algo, config.network, spec)
    extra = {**extra, **data_schema(data_columns(config), spec.action)}
    return types.transition_schema(spec, {**extra, **built, "source": Column((), "int32")})


def fits(config: Config, dataset: Dataset) -> bool:
    """Return whether the replay table can hold all rows of the dataset."""
    return rows_of(config, dataset) <= config.replay.num_rows


def rows_of(config: Config, dataset: Dataset) -> int:
    """Return the number of rows that the builder makes of the dataset."""
    return config.replay.num_rows_of(np.diff(dataset.ends, prepend=0))


def with_whole_table(config: Config, dataset: Dataset) -> Config:
    """Return the config with a replay table that holds a whole dataset, whose rows begin with equal priorities."""
    capacity = rows_of(config, dataset) * config.replay.row_stride
    first: Any = {"initial_priority": "max"} if config.replay.worker_priorities else {}  # Any: a field of some tables
    return replace(config, replay=replace(config.replay, capacity=capacity, shards=1, **first))


def data_columns(config: Config) -> tuple[str, ...]:
    """Return the columns in `DATA`, which depend on later steps of the episode."""
    return load_algorithm(config.algo.name).DATA


def most_open_steps(config: Config) -> int:
    """Return the number of steps for which a worker keeps an episode, to know its later steps, or 0.

    If the episodes of all environments end in one collect call, their rows must still fit into the table.
    """
    if config.is_offline or not data_columns(config):
        return 0
    room = config.replay.num_transitions // config.num_shards - config.most_workers * config.rows_per_collect
    return max(1, min(MOST_OPEN_STEPS, room // (config.most_workers * config.worker.envs)))


def has_step_states(config: Config) -> bool:
    """Return whether the column `state` of windows has the recurrent state before each step, `[B, L, S]`."""
    module = load_algorithm(config.algo.name)
    return config.replay.table == "windows" and (module.STEP_STATES or "state" in module.WRITES)


def stackings_of(config: Config, spec: EnvSpec) -> dict[str, Stacking]:
    """Return how stacked images are split into frames, by observation path. Empty if rows contain whole stacks."""
    return make_stackings(spec) if config.replay.frame_codec is not None else {}
