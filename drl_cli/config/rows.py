"""The rows of a run's replay table: their columns, and how many of them a dataset has."""

from dataclasses import replace
from typing import Any

import numpy as np

from drl_cli import types
from drl_cli.algos.lookup import load_algorithm
from drl_cli.config.config import Config
from drl_cli.data.columns import data_schema
from drl_cli.data.dataset import Dataset
from drl_cli.types import Column, EnvSpec, Schema


def row_schema(config: Config, spec: EnvSpec) -> Schema:
    """Return the columns of a replay row: the algorithm's columns, and `source` (worker and environment)."""
    module, built = load_algorithm(config.algo.name), config.replay.extra_columns()
    extra = module.Policy.extra_columns(config.algo, config.network, spec)
    extra = {**extra, **data_schema(config.data_columns, spec.action)}
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
    first: Any = {"initial_priority": "max"} if config.worker_priorities else {}  # Any: a field of some tables
    return replace(config, replay=replace(config.replay, capacity=capacity, shards=1, **first))
