"""The contract between an algorithm and everything else: what a file in this folder has to provide.

An algorithm is one module with three classes, `Config`, `Policy` and `Algorithm`, and one yaml in conf/algo. It knows
an `EnvSpec` and batches of columns; it does not log, save, read configs or know that it is distributed.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, cast

from drl_cli.networks.mlp import NetworkConfig
from drl_cli.types import Array, Columns, EnvSpec, Schema
from drl_cli.utils.lazy import torch
from drl_cli.utils.ranges import Count, Fraction

Batch = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class AlgoConfig:
    """What every algorithm's Config has: the discount is applied by the worker's n-step builder."""

    name: str
    gamma: Fraction
    n_step: Count


@dataclass(frozen=True)
class Update:
    """Result of one gradient update: scalar tensors by name, and new priorities `[B]` where replay wants them."""

    metrics: Mapping[str, "torch.Tensor"]
    priorities: "torch.Tensor | None" = None


class Policy(Protocol):
    """Acts; numpy only, so that a worker process needs no torch."""

    extra_columns: ClassVar[Schema]

    def __init__(self, config: AlgoConfig, network: NetworkConfig, spec: EnvSpec, seed: int) -> None: ...

    def load(self, params: Array) -> None:
        """Use this flat float32 vector, as `Algorithm.policy_params` gave it."""

    def explore(self, values: Mapping[str, float]) -> None:
        """Explore by these values from now on, as `Algorithm.exploration` gave them."""

    def act(self, obs: Array) -> Columns:
        """Explore: `action` `[E, ...]` and the policy's extra columns for observations `[E, ...]`."""

    def random(self, rows: int) -> Columns:
        """The same columns with actions drawn uniformly from the action space."""

    def greedy(self, obs: Array) -> Array:
        """The best action for each observation, without exploration."""


class Algorithm(Protocol):
    """Learns from batches."""

    def __init__(
        self, config: AlgoConfig, network: NetworkConfig, spec: EnvSpec, seed: int, device: "torch.device"
    ) -> None: ...

    def update(self, batch: Batch) -> Update:
        """One gradient update from columns `[B, ...]`; `weight` is among them only where replay is prioritized."""

    def policy_params(self) -> Array:
        """Flat float32 copy of what the policy needs, and nothing else."""

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        """Values of the exploration schedules, by name, after `env_steps` over all workers; empty without any."""

    def state(self) -> "dict[str, torch.Tensor]":
        """Everything that has to be saved to go on exactly."""

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Go on from `state()`; raises ValueError when names or shapes differ."""


class AlgoModule(Protocol):
    """A module in this folder."""

    __doc__: str | None
    ACTIONS: tuple[str, ...]
    MODES: tuple[str, ...]
    Config: type[AlgoConfig]
    Policy: type[Policy]
    Algorithm: type[Algorithm]


def algorithms() -> list[str]:
    """Names of all algorithms."""
    return sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name != "base")


def load_algorithm(name: str) -> AlgoModule:
    """The module of an algorithm; raises ValueError naming what there is."""
    if name not in algorithms():
        raise ValueError(f"unknown algorithm '{name}'; available: {', '.join(algorithms())}")
    return cast(AlgoModule, importlib.import_module(f"drl_cli.algos.{name}"))


def refusal(name: str, spec: EnvSpec, mode: str) -> str | None:
    """Why this algorithm can't run on this environment or in this mode, with what can; None when it can."""
    module = load_algorithm(name)
    if spec.action.kind not in module.ACTIONS:
        wanted = {"box": "continuous (Box)", "discrete": "discrete"}[module.ACTIONS[0]]
        fits = [other for other in algorithms() if spec.action.kind in load_algorithm(other).ACTIONS]
        advice = f" For this: algo={fits[0]}" if fits else " No algorithm here handles that yet."
        article = "an" if wanted[0] in "aeiou" else "a"
        return f"{name.upper()} needs {article} {wanted} action space; {spec.id} has {spec.action.text}.{advice}"
    if mode not in module.MODES:
        return f"{name.upper()} does not run in mode={mode}; it runs in {', '.join(module.MODES)}"
    return None
