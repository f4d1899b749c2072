"""Case: an algorithm in one environment, and batches for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import Algorithm, Batch, Counts, Policy, Update
from drl_cli.algos.lookup import AlgoModule, algorithms, load_algorithm
from drl_cli.envs.make import read_spec
from drl_cli.optim.group import Context, ProcessGroup
from drl_cli.replay.config import SequencesConfig
from drl_cli.settings.compose import compose
from drl_cli.settings.conf import option_file
from drl_cli.types import MASK, Array, Column, Obs, PreviousStep, Schema, leaves
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 16
PROBES = {"box": "drl_cli.envs.probes:Reach-v0", "discrete": "drl_cli.envs.probes:Choose-v0"}
"""An environment with a known answer, by kind of actions: the best action is the observation, and its index."""


class Case:
    """An algorithm in one environment, and batches of random rows for it."""

    def __init__(self, name: str, *overrides: str) -> None:
        self.module = module_of(name)
        env = [] if any(one.startswith("env=") for one in overrides) else [f"env={PROBES[self.module.ACTIONS[0]]}"]
        self.config = compose([f"algo={name}", "mode=single", *env, *overrides])
        self.spec = read_spec(self.config.env)
        self.is_on_policy = "fifo-once" in self.module.TABLES
        replay = self.config.replay
        self.sequences = replay if isinstance(replay, SequencesConfig) else None
        options = (self.config.algo, self.config.network, self.spec)
        self.extra: Schema = self.module.Policy.extra_columns(*options)

    def algorithm(self, seed: int = 0, context: Context | None = None) -> Algorithm:
        """As a trainer makes it: torch's own generator is seeded too."""
        torch.manual_seed(seed)
        context = context or self.context()
        return self.module.Algorithm(self.config.algo, self.config.network, self.spec, seed, context)

    def context(self, group: ProcessGroup | None = None, skips: bool = False) -> Context:
        """Where it learns."""
        burn_in = self.sequences.burn_in if self.sequences else 0
        return Context(torch.device("cpu"), group or ProcessGroup(), skips, burn_in=burn_in)

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
        """Rows as replay gives them; of sequences one begins after its first step, and one ends before its last."""
        if self.sequences is None:
            return self._steps(seed, rows)
        length = self.sequences.length
        steps = self._steps(seed, rows * length)
        state = steps.pop("state", None)
        batch = {name: by_sequence(column, length) for name, column in steps.items()}
        valid = torch.ones(rows, length, dtype=torch.bool)
        if self.sequences.burn_in:
            valid[0, 0] = False
        if self.sequences.seq_len > 1:
            valid[1, -1] = False
        batch = {name: padded(column, valid) for name, column in batch.items()} | {"valid": valid}
        return batch if state is None else batch | {"state": state.view(rows, length, -1)[:, 0].contiguous()}

    def _steps(self, seed: int, rows: int) -> dict[str, Any]:  # Any: as in Batch
        rng, obs = np.random.default_rng(seed), self.obs(rows, seed + 1)
        policy, last = self.policy(seed), PreviousStep.none(self.spec, rows)
        columns: dict[str, Any] = dict(policy.act(obs, last) if self.is_on_policy else policy.random(obs, last))
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


def module_of(name: str) -> AlgoModule:
    """The algorithm's module; of a yaml that only chooses options of an algorithm, that one's."""
    is_yaml = name not in algorithms() and option_file("algo", name) is not None
    return load_algorithm(compose([f"algo={name}"]).algo.name if is_yaml else name)


def by_sequence(column: Any, length: int) -> Any:  # Any: as in Batch
    """Steps `[rows * length, ...]` as `[rows, length, ...]`."""
    if isinstance(column, Mapping):
        return {name: by_sequence(part, length) for name, part in column.items()}
    return column.unflatten(0, (-1, length))


def padded(column: Any, valid: Tensor) -> Any:  # Any: as in Batch
    """Sequences `[rows, length, ...]` with zeros where `valid` is False."""
    if isinstance(column, Mapping):
        return {name: padded(part, valid) for name, part in column.items()}
    return column * valid.view(*valid.shape, *[1] * (column.ndim - 2)).to(column.dtype)


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
