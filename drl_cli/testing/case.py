"""Case: an algorithm in one environment, and batches for it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from drl_cli.algos.base import Algorithm, Batch, Counts, Policy, Update
from drl_cli.algos.lookup import load_algorithm
from drl_cli.cli.compose import compose
from drl_cli.envs.make import read_spec
from drl_cli.types import (
    MASK,
    Array,
    Column,
    Obs,
    Schema,
    leaves,
)
from drl_cli.utils.group import Context
from drl_cli.utils.lazy import torch

ROWS = 16
PROBES = {"box": "drl_cli.envs.probes:Reach-v0", "discrete": "drl_cli.envs.probes:Choose-v0"}
"""An environment with a known answer, by kind of actions: the best action is the observation, and its index."""


class Case:
    """An algorithm in one environment, and batches of random rows for it."""

    def __init__(self, name: str, *overrides: str) -> None:
        """Named as for `algo=`, in a probe where no `env=` is among the overrides."""
        values = [f"algo={name}", "mode=single"]
        self.config = compose([*values, f"env={PROBES['discrete']}", *overrides])
        self.module = load_algorithm(self.config.algo.name)
        kind = self.module.ACTIONS[0]
        if kind != "discrete" and not any(one.startswith("env=") for one in overrides):
            self.config = compose([*values, f"env={PROBES[kind]}", *overrides])
        self.spec = read_spec(self.config.env)
        self.is_on_policy = "fifo-once" in self.module.TABLES
        options = (self.config.algo, self.config.network, self.spec)
        self.extra: Schema = self.module.Policy.extra_columns(*options)

    def algorithm(self, seed: int = 0, context: Context | None = None) -> Algorithm:
        """As a trainer makes it: torch's own generator is seeded too."""
        torch.manual_seed(seed)
        context = context or Context(torch.device("cpu"))
        return self.module.Algorithm(self.config.algo, self.config.network, self.spec, seed, context)

    def policy(self, seed: int = 0, algorithm: Algorithm | None = None) -> Policy:
        """As a worker makes it."""
        policy = self.module.Policy(self.config.algo, self.config.network, self.spec, seed)
        algorithm = algorithm or self.algorithm()
        policy.load(algorithm.policy_params())
        policy.explore(algorithm.exploration(0))
        return policy

    def obs(self, rows: int, seed: int = 5) -> Obs:
        """Random observations."""
        rng = np.random.default_rng(seed)
        parts = {path: random_values(path, column, rows, rng) for path, column in leaves(self.spec.obs).items()}
        return parts[""] if list(parts) == [""] else parts

    def batch(self, seed: int = 0, rows: int = ROWS) -> dict[str, Any]:  # Any: as in Batch
        """Rows as replay gives them."""
        rng, obs = np.random.default_rng(seed), self.obs(rows, seed + 1)
        policy = self.policy(seed)
        columns: dict[str, Any] = dict(policy.act(obs) if self.is_on_policy else policy.random(obs))
        columns |= {
            "obs": obs,
            "next_obs": self.obs(rows, seed + 2),
            "reward": rng.standard_normal(rows, np.float32),
            "terminated": rng.random(rows) < 0.2,
            "truncated": rng.random(rows) < 0.2,
        }
        columns["discount"] = np.where(columns["terminated"], 0, 0.99).astype(np.float32)
        if self.is_on_policy:
            columns["cut"] = columns["terminated"] | columns["truncated"]
            columns["cut"][ROWS - 1 :: ROWS] = True  # as rollouts end; learners share them whole
        return tensors(columns)

    def learn(self, algorithm: Algorithm, first: int, last: int, rows: int = ROWS) -> list[Update]:
        """Updates with these numbers."""
        return [algorithm.learn(self.batch(i, rows), Counts(i, 10 * i)) for i in range(first, last)]


def random_values(path: str, column: Column, rows: int, rng: np.random.Generator) -> Array:
    """Values of one part of an observation, `[rows, ...]`; a mask allows everything."""
    shape = (rows, *column.shape)
    if column.dtype == "bool":
        return np.ones(shape, np.bool_) if path == MASK else rng.random(shape) < 0.5
    if column.dtype == "float32":
        return rng.standard_normal(shape, np.float32)
    most = np.array(column.choices).reshape(column.shape) if column.choices else 256
    return rng.integers(most, size=shape).astype(column.dtype)


def tensors(columns: Mapping[str, Any]) -> dict[str, Any]:  # Any: an array, or a dict of them
    """Columns as tensors, copies."""
    return {n: tensors(c) if isinstance(c, Mapping) else torch.from_numpy(c.copy()) for n, c in columns.items()}


def rows_of(batch: Batch, where: slice) -> dict[str, Any]:  # Any: as in Batch
    """Some rows of a batch."""
    return {name: rows_of(c, where) if isinstance(c, Mapping) else c[where] for name, c in batch.items()}


def equal(ours: Batch, theirs: Batch) -> bool:
    """Whether two batches or states are equal to the last bit."""
    return ours.keys() == theirs.keys() and all(
        equal(ours[n], theirs[n]) if isinstance(ours[n], Mapping) else torch.equal(ours[n], theirs[n]) for n in ours
    )


def close(ours: Batch, theirs: Batch) -> bool:
    """Whether they are equal up to rounding."""
    return all(torch.allclose(ours[name].float(), theirs[name].float(), rtol=1e-4, atol=1e-6) for name in ours)
