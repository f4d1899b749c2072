"""Reanalyzer: searches stored steps again with newer parameters, and returns new values for their columns."""

import time

import numpy as np

from drl_cli.algos.lookup import load_algorithm
from drl_cli.config.config import Config
from drl_cli.errors import AlgorithmRefused
from drl_cli.replay.windows import TARGET_VERSION
from drl_cli.runtime.messages import BatchTrainingData, ReanalysisReport, UpdatePriority
from drl_cli.runtime.roles.normalization import make_policy
from drl_cli.types import Array, Columns, EnvSpec, LoadParams, gathered, map_parts
from drl_cli.utils.seeding import integers


class Reanalyzer:
    """Has a copy of the policy, but no environment. It answers each call with the search's results for some windows."""

    def __init__(self, config: Config, spec: EnvSpec, index: int, incarnation: int) -> None:
        (seed,) = integers(config.seed, "reanalyze", 1, index, incarnation)
        self.policy = make_policy(config, spec, seed)
        self.schema = load_algorithm(config.algo.name).Policy.extra_columns(config.algo, config.network, spec)
        self.version = -1

    def reanalyze(
        self,
        drawn: BatchTrainingData,
        columns: Columns,
        params_header: LoadParams | None = None,
        params: Array | None = None,
    ) -> tuple[ReanalysisReport, UpdatePriority]:
        """Search from the observations `[1, B, L, ...]` of windows, and return new values for their rows.

        `params`, if given, are newer parameters with their header; the first call needs them. Padding is searched, too,
        so that all searches have the same size, and its id -1 has replay skip the result. Raise AlgorithmRefused if the
        policy returns columns that rows do not have.
        """
        started = time.perf_counter()
        if params is not None and params_header is not None:
            self.policy.load(params)
            self.version = params_header.version
        assert self.version >= 0, "the first call brings parameters"
        assert drawn.row_ids is not None, "replay gives the ids of windows"
        shape, num_steps = drawn.row_ids.shape, drawn.row_ids.size
        obs = map_parts(lambda part: part.reshape(num_steps, *part.shape[len(shape) :]), gathered(columns)["obs"])
        found = self.policy.reanalyze(obs)
        for name, column in found.items():
            needed = (len(column), *self.schema[name].shape) if name in self.schema else "no such column"
            if column.shape != needed:
                raise AlgorithmRefused(f"algo: Policy.reanalyze: {name} has shape {column.shape}, rows have {needed}")
        new = {name: column.reshape(*shape, *column.shape[1:]) for name, column in found.items()}
        new[TARGET_VERSION] = np.full(shape, self.version)
        report = ReanalysisReport(
            steps=int(np.count_nonzero(drawn.row_ids >= 0)),
            seconds=time.perf_counter() - started,
        )
        return report, UpdatePriority(drawn.row_ids, None, new)
