"""The contract between an algorithm and everything else: what a file in this folder, or a module of yours, provides.

An algorithm is one module with three classes, `Config`, `Policy` and `Algorithm`, and one yaml in conf/algo. It knows
an `EnvSpec` and batches of columns; it does not log, save, read configs or know that it is distributed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.group import Context
from drl_cli.optim.optimizer import NotFinite, Optimizer
from drl_cli.optim.params import Params, load_tensors
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State
from drl_cli.utils.ranges import Count, Fraction
from drl_cli.utils.seeding import rng_state, set_rng_state

if TYPE_CHECKING:
    from torch import Tensor

Batch: TypeAlias = Mapping[str, Any]
"""Columns `[B, ...]` as tensors; `obs` and `next_obs` of a Dict or Tuple space are dicts of tensors. Any: either."""


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """What every algorithm's Config has: the discount is applied by the worker's n-step builder.

    Fields of a Config may have defaults: they are the values where a user's module comes without a yaml.
    """

    name: str
    gamma: Fraction = 0.99
    n_step: Count = 1


class Counts(NamedTuple):
    """How far the run is: gradient updates made before this one, environment steps over all workers."""

    opt_steps: int = 0
    env_steps: int = 0


@dataclass(frozen=True)
class Update:
    """Result of learning from one batch: scalar tensors by name, new priorities `[B]` where replay wants them.

    Not every update has to give every metric. Priorities of sequences are `[B, seq_len]`, of the steps learned from.
    `steps` gradient updates were made, and the metrics are theirs; `skipped` were left out, being not finite.
    """

    metrics: Mapping[str, Tensor]
    priorities: Tensor | None = None
    steps: int = 1
    skipped: int = 0


class Policy(ABC):
    """Acts. All its randomness comes from `rng`."""

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

    def explore(self, values: Mapping[str, Any]) -> None:  # Any: a float, or an array
        """Explore by these values from now on, as `Algorithm.exploration` gave them; stochastic policies need none.

        With worker.exploration=env_ladder each is an array `[E]`, one value for each environment.
        """

    @abstractmethod
    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        """Explore: `action` `[E, ...]` and the policy's extra columns for observations `[E, ...]` of E environments.

        A policy with memory is given what the `last` step gave; each call is the next step of the same environments.
        """

    @abstractmethod
    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        """The same columns with actions drawn uniformly from the action space."""

    def priorities(self, rows: Columns) -> Array:
        """|TD error| `[rows]` (sequences: `[rows, seq_len]`) by the policy's own parameters, if it has a critic."""
        raise NotImplementedError

    @abstractmethod
    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        """The best action for each observation, without exploration."""

    def state(self) -> State:
        """What acting on needs besides parameters and exploration values: `rng`; a recurrent policy adds its memory."""
        return {"rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        """Go on from `state()`; its arrays may be read-only."""
        set_rng_state(self.rng, state["rng"])


class Algorithm(ABC):
    """Learns from batches.

    A subclass makes `params` and `optimizer` in its constructor and writes `update`; all that it has to remember is in
    these two. `policy_parts` names the parts of `params` that its Policy acts with, in the order of `Policy.load`.
    """

    policy_parts: tuple[str, ...]
    params: Params
    optimizer: Optimizer

    @abstractmethod
    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: Context) -> None: ...

    @abstractmethod
    def update(self, batch: Batch, counts: Counts) -> Update:
        """Learn from one batch; a column `weight` is in it only where replay is prioritized.

        Gradients are written by `loss.backward()` or by hand into `params.grad`; only `optimizer` changes parameters.
        """

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        """Values of the exploration schedules, by name, after `env_steps` over all workers; empty without any."""
        return {}

    def learn(self, batch: Batch, counts: Counts) -> Update:
        """`update` with the learning rates of this moment; with trainer.on_nonfinite=skip all of it, or none."""
        self.optimizer.schedule(counts.env_steps)
        if not self.optimizer.context.skips:
            return self.update(batch, counts)
        params = {name: tensor.clone() for name, tensor in self.params.tensors().items()}
        moments = {name: tensor.clone() for name, tensor in self.optimizer.rule.state().items()}
        try:
            return self.update(batch, counts)
        except NotFinite:
            load_tensors(self.params.tensors(), params)
            self.optimizer.rule.load_state(moments)
            return Update({}, steps=0, skipped=1)

    def policy_params(self) -> Array:
        """Flat float32 copy of what the policy needs, and nothing else."""
        return self.params.vector(self.policy_parts)

    def load_policy(self, params: Array) -> None:
        """The inverse of `policy_params`, for starting from saved weights; all that it does not say stays fresh.

        Raises ValueError naming both sizes when they differ.
        """
        self.params.load_vector(self.policy_parts, params)

    def state(self) -> dict[str, Tensor]:
        """Everything that has to be saved to go on exactly."""
        return self.params.state() | self.optimizer.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state()`; raises ValueError when names or shapes differ."""
        self.optimizer.load_state(state)
        self.params.load_state(state)
