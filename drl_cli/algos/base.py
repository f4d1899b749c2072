"""The contract between an algorithm and everything else: what a file in this folder has to provide.

An algorithm is one module with three classes, `Config`, `Policy` and `Algorithm`, and one yaml in conf/algo. It knows
an `EnvSpec` and batches of columns; it does not log, save, read configs or know that it is distributed.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

import drl_cli.algos
from drl_cli.networks.mlp import NetworkConfig
from drl_cli.types import Array, Columns, EnvSpec, Last, Obs, Schema, State
from drl_cli.utils.group import Context
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count, Fraction
from drl_cli.utils.seeding import rng_state, set_rng_state

Batch = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class AlgoConfig:
    """What every algorithm's Config has: the discount is applied by the worker's n-step builder."""

    name: str
    gamma: Fraction
    n_step: Count


@dataclass(frozen=True)
class Update:
    """Result of learning from one batch: scalar tensors by name, new priorities `[B]` where replay wants them.

    Priorities of sequences are `[B, seq_len]`, of the steps learned from. `steps` gradient updates were made, and the
    metrics are theirs; `skipped` were left out, being not finite.
    """

    metrics: Mapping[str, "torch.Tensor"]
    priorities: "torch.Tensor | None" = None
    steps: int = 1
    skipped: int = 0


class Policy(ABC):
    """Acts; numpy only, so that a worker process needs no torch. All its randomness comes from `rng`."""

    rng: np.random.Generator

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        """What `act` gives besides `action`, of each row."""
        return {}

    @abstractmethod
    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None: ...

    @abstractmethod
    def load(self, params: Array) -> None:
        """Use this flat float32 vector, as `Algorithm.policy_params` gave it."""

    def explore(self, values: Mapping[str, float]) -> None:
        """Explore by these values from now on, as `Algorithm.exploration` gave them; stochastic policies need none."""

    @abstractmethod
    def act(self, obs: Obs, last: Last | None = None) -> Columns:
        """Explore: `action` `[E, ...]` and the policy's extra columns for observations `[E, ...]` of E environments.

        A policy with memory is given what the `last` step gave; each call is the next step of the same environments.
        """

    @abstractmethod
    def random(self, obs: Obs, last: Last | None = None) -> Columns:
        """The same columns with actions drawn uniformly from the action space."""

    def priorities(self, rows: Columns) -> Array:
        """|TD error| `[rows]` (sequences: `[rows, seq_len]`) by the policy's own parameters, if it has a critic."""
        raise NotImplementedError

    @abstractmethod
    def greedy(self, obs: Obs, last: Last | None = None) -> Array:
        """The best action for each observation, without exploration."""

    def state(self) -> State:
        """What acting on needs besides parameters and exploration values: `rng`; a recurrent policy adds its memory."""
        return {"rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        """Go on from `state()`; its arrays may be read-only."""
        set_rng_state(self.rng, state["rng"])


class Algorithm(Protocol):
    """Learns from batches: the losses and gradients of one are a function of tensors, given to `context.compiled`."""

    def __init__(
        self, config: AlgoConfig, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context
    ) -> None: ...

    def update(self, batch: Batch) -> Update:
        """Learn from one batch of columns `[B, ...]`; `weight` is among them only where replay is prioritized."""

    def policy_params(self) -> Array:
        """Flat float32 copy of what the policy needs, and nothing else."""

    def load_policy(self, params: Array) -> None:
        """The inverse of `policy_params`, for starting from saved weights; all that it does not say stays fresh.

        Raises ValueError naming both sizes when they differ.
        """

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        """Values of the exploration schedules, by name, after `env_steps` over all workers; empty without any."""

    def state(self) -> "dict[str, torch.Tensor]":
        """Everything that has to be saved to go on exactly."""

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Go on from `state()`; raises ValueError when names or shapes differ."""


class AlgoModule(Protocol):
    """A module in this folder: what it can act on, where it runs, which replay tables it learns from (samplers).

    `EXPLORATION` are the names of the values that `Algorithm.exploration` gives.
    """

    __doc__: str | None
    ACTIONS: tuple[str, ...]
    MODES: tuple[str, ...]
    TABLES: tuple[str, ...]
    EXPLORATION: tuple[str, ...]
    Config: type[AlgoConfig]
    Policy: type[Policy]
    Algorithm: type[Algorithm]


def algorithms() -> list[str]:
    """Names of all algorithms."""
    return sorted(m.name for m in pkgutil.iter_modules(drl_cli.algos.__path__) if m.name != "base")


def load_algorithm(name: str) -> AlgoModule:
    """The module of an algorithm; raises ValueError naming what there is."""
    if name not in algorithms():
        raise ValueError(f"unknown algorithm '{name}'; available: {', '.join(algorithms())}")
    return cast(AlgoModule, importlib.import_module(f"drl_cli.algos.{name}"))


def refusal(name: str, spec: EnvSpec, mode: str, sampler: str) -> str | None:
    """Why this algorithm can't run on this environment, in this mode or from this table; None when it can."""
    module = load_algorithm(name)
    if spec.action.kind not in module.ACTIONS:
        names = {"box": "continuous (Box)", "discrete": "discrete", "multidiscrete": "multi-discrete"}
        wanted = " or ".join(names[kind] for kind in module.ACTIONS)
        fits = [other for other in algorithms() if spec.action.kind in load_algorithm(other).ACTIONS]
        advice = (
            f" For this: {' or '.join(f'algo={fit}' for fit in fits)}"
            if fits
            else " No algorithm here handles that yet."
        )
        article = "an" if wanted[0] in "aeiou" else "a"
        return f"{name.upper()} needs {article} {wanted} action space; {spec.id} has {spec.action.text}.{advice}"
    if mode not in module.MODES:
        return f"{name.upper()} does not run in mode={mode}; it runs in {', '.join(module.MODES)}"
    if sampler not in module.TABLES:
        tables = " or ".join(f"replay={table}" for table in module.TABLES)
        return f"{name.upper()} can't learn from replay={sampler}; say {tables}"
    return None
