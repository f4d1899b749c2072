"""The base classes of an algorithm. An algorithm's module, here or in your own package, derives three classes.

- `Config` is a frozen dataclass of the options, derived from `AlgoConfig`.
- `Policy` chooses actions in workers and evaluations.
- `Algorithm` learns from batches in a trainer and returns the parameters that the policy loads.

The constructors of `Policy` and `Algorithm` get the options, the network options and an `EnvSpec`. Neither class logs,
saves files, reads config files, or knows whether the run is distributed. docs/add-an-algorithm.md shows step by step
how to write an algorithm.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from drl_cli.algos.context import AlgoContext
from drl_cli.chains import recording
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.head import Head
from drl_cli.optim.modules import load_tensors
from drl_cli.optim.optimizer import NotFinite, Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Fraction
from drl_cli.utils.seeding import rng_state, set_rng_state

Batch: TypeAlias = Mapping[str, Any]
"""Columns of transitions as tensors `[B, ...]`; `obs` and `next_obs` of a Dict or Tuple space are dicts of tensors.

Columns are `obs`, `action`, `reward` (n-step), `discount` (gamma^n; 0 if the episode terminated), `next_obs` (after n
steps), `terminated`, `truncated` and the policy's extra columns. Prioritized replay adds the importance `weight`. With
replay=sequences, columns are `[B, L, ...]` with 1-step rewards, and `valid` is False for padding.
"""


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """Options that every algorithm has; derive your Config from it.

    Every field needs a type. It also needs a default value, unless a yaml file sets the field. The built-in algorithms
    have all default values in conf/algo/*.yaml, and classes derived from their Config inherit these. Workers compute
    n-step rewards from `gamma` and `n_step`, so batches already contain n-step rewards. Only sequences contain 1-step
    rewards, from which Learner computes n-step rewards in the trainer.
    """

    name: str
    preset: str | None = None
    gamma: Fraction = 0.99
    n_step: Count = 1

    def window_problems(self, seq_len: int) -> Iterator[str]:
        """Yield an error line for each option that does not fit windows of `seq_len` steps. Every run checks this."""
        yield from ()


class Counts(NamedTuple):
    """Progress of the run: the number of gradient updates, and the number of environment steps of all workers."""

    opt_steps: int = 0
    env_steps: int = 0


@dataclass(frozen=True)
class Update:
    """The result of `Algorithm.update`.

    `metrics` maps names to scalar tensors; an update may leave out some metrics. `priorities` are the new replay
    priorities: `[B]` for transitions, or `[B, seq_len]` for sequences, without the burn-in steps. `steps` is the number
    of gradient updates made. `skipped` is the number of updates skipped because a loss or gradient was not finite.
    `columns` are new values `[B, ...]` of the columns that the module's `WRITES` lists; replay stores these values.
    """

    metrics: Mapping[str, Tensor]
    priorities: Tensor | None = None
    steps: int = 1
    skipped: int = 0
    columns: Mapping[str, Tensor] = field(default_factory=dict)


class Policy(ABC):
    """Chooses actions for E environments at once. A subclass must draw all random numbers from `self.rng`."""

    rng: np.random.Generator

    @classmethod
    def check(cls, config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
        """Raise Refused if the algorithm does not allow these options. Every run calls `check` before it starts."""

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        """Return the columns that `act` and `random` return in addition to `action`, such as PPO's log-probability."""
        return {}

    @abstractmethod
    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None: ...

    @abstractmethod
    def load(self, params: Array) -> None:
        """Load parameters that `Algorithm.policy_params` returned; raise ValueError if the size is wrong."""

    def explore(self, values: Mapping[str, Any]) -> None:  # Any: a float, or an array
        """Set the exploration values for the next calls of `act`, as returned by `Algorithm.exploration`.

        With worker.exploration=env_ladder, each value is an array `[E]` with one number for each environment.
        """

    @abstractmethod
    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        """Return a column `action` `[E, ...]` of exploring actions for observations `[E, ...]`, and the extra columns.

        Box actions are in [-1, 1]; discrete actions are integers from 0. A recurrent policy also needs `last`, the
        previous step of the same environments.
        """

    @abstractmethod
    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        """Return the same columns as `act`, with actions drawn uniformly from the action space."""

    def priorities(self, rows: Columns) -> Array:
        """Return initial priorities `[rows]`, such as |TD error|, for n-step transitions `[rows, ...]`.

        The rows have the extra columns of `act`, too. With replay=sequences, rows are `[rows, L, ...]` and priorities
        `[rows, seq_len]`. With windows, replay stores single steps, and a window has the priority of its first step.
        Only replay.initial_priority=worker needs this method.
        """
        raise NotImplementedError

    def reanalyze(self, obs: Obs) -> Columns:
        """Return new values `[E, ...]` of stored columns for observations `[E, ...]`, without exploration.

        An example is the policy that a tree search finds. Re-analysers (reanalyzer.num) write the new values into
        replay. Only re-analysers call this method.
        """
        raise NotImplementedError

    @abstractmethod
    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        """Return the best actions `[E, ...]` for observations `[E, ...]`, without exploration."""

    def exported_head(self) -> Head | None:
        """Return a description of the loaded network for drl-export, or None if this class has no description.

        A class that overrides how the policy acts also overrides this method.
        """
        return None

    def state(self) -> State:
        """Return what a checkpoint saves besides parameters and exploration values: `rng` and any recurrent state."""
        return {"rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned; the arrays may be read-only."""
        set_rng_state(self.rng, state["rng"])


class Algorithm(ABC):
    """Learns from batches.

    A subclass makes `params` and `optimizer` in its constructor and defines `update`. Checkpoints save only what
    `params` and `optimizer` contain. `policy_parts` names the parts of `params` that the Policy needs, in the order in
    which `Policy.load` reads these parts.
    """

    policy_parts: tuple[str, ...]
    is_one_step = True
    """Whether `update` makes exactly one gradient step. Only then can drl-cli compile the whole update."""
    params: Params
    optimizer: Optimizer

    @abstractmethod
    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None: ...

    @abstractmethod
    def update(self, batch: Batch, counts: Counts) -> Update:
        """Learn from one batch, without changing the batch.

        Compute gradients with `optimizer.minimize(loss)` or `loss.backward()`, or write them into `params.grad`. Change
        parameters only through `optimizer`, which averages the gradients of all trainers.
        """

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        """Return the exploration values (name -> value, such as epsilon) after `env_steps` steps of all workers."""
        return {}

    def learn(self, batch: Batch, counts: Counts) -> Update:
        """Set the scheduled learning rates and call `update`; if `update` raises NotFinite, undo the update."""
        if (
            recording()
        ):  # the trainer has set the learning rates, and drl_cli.chains undoes an update that is not finite
            return self.update(batch, counts)
        self.optimizer.schedule(self.optimizer.context.clock.of(counts))
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
        """Return a flat float32 copy `[size]` of the parameters that the policy needs."""
        return self.params.vector(self.policy_parts)

    def load_policy(self, params: Array) -> None:
        """Load the policy parameters of another run; all other parameters keep their initial values.

        Raise ValueError if the number of parameters differs.
        """
        self.params.load_vector(self.policy_parts, params)

    def state(self) -> dict[str, Tensor]:
        """Return everything that a checkpoint saves, by name, so that a resumed run gives exactly the same results."""
        return self.params.state() | self.optimizer.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; raise ValueError if names or shapes differ."""
        self.optimizer.load_state(state)
        self.params.load_state(state)
