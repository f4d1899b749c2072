"""The base classes of algorithms. An algorithm is a Python module, here or in your own package, with three classes.

- `Config`, derived from `AlgoConfig`, is a frozen dataclass with the options of the algorithm.
- `Policy` chooses actions. Workers, which step the environments, and evaluations use the policy.
- `Algorithm` learns from batches in a trainer process, and returns the parameters that the policy loads.

The constructors of `Policy` and `Algorithm` get the Config, the network options and an `EnvSpec`, which describes the
environment. Neither class logs, saves files, reads config files, or knows whether the run is distributed.
docs/add-an-algorithm.md shows step by step how to write an algorithm.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from drl_cli.algos.context import AlgoContext
from drl_cli.chains.present import recording
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.modules import load_tensors
from drl_cli.optim.optimizer import NotFinite, Optimizer
from drl_cli.optim.params import Params
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State
from drl_cli.utils.lazy import Tensor
from drl_cli.utils.ranges import Count, Fraction
from drl_cli.utils.seeding import rng_state, set_rng_state

Batch: TypeAlias = Mapping[str, Any]
"""A batch of B transitions: a mapping from the names of columns to tensors `[B, ...]`.

The columns are `obs`, `action`, `reward` (the n-step reward), `discount` (gamma^n, or 0 if the episode terminated),
`next_obs` (the observation after n steps), `terminated`, `truncated` and the policy's extra columns. `obs` and
`next_obs` of a Dict or Tuple space are dicts of tensors. Prioritized replay adds the importance weights `weight`. With
replay=sequences, the columns are `[B, L, ...]` and contain 1-step rewards. The column `valid` is False for padding.
"""


Metrics: TypeAlias = dict[str, Tensor]
"""Scalar tensors by name, for the log."""


@dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """The options that every algorithm has. The Config of an algorithm is derived from this class.

    Every field of a Config needs a type, and a default value unless a yaml file sets the field. The default values of
    the built-in algorithms are in conf/algo/*.yaml. A Config derived from a built-in Config inherits these values.

    `gamma` is the discount factor. Workers compute the n-step rewards of transitions, with n = `n_step`. Sequences
    contain 1-step rewards, which the trainer replaces by n-step rewards.
    """

    name: str
    preset: str | None = None
    gamma: Fraction = 0.99
    n_step: Count = 1

    def window_problems(self, seq_len: int) -> Iterator[str]:
        """Yield an error message for each option that does not fit a replay of windows with `seq_len` steps each.

        drl-cli calls this method before a run with replay=sequences or replay=windows. The default yields no message.
        """
        yield from ()


class Counts(NamedTuple):
    """The progress of a run: the number of gradient updates, and the number of environment steps of all workers."""

    opt_steps: int = 0
    env_steps: int = 0


@dataclass(frozen=True)
class Update:
    """The result of `Algorithm.update`.

    - `metrics`: Scalar tensors by name. An update may leave out some metrics.
    - `priorities`: The new replay priorities: `[B]` for transitions, or `[B, seq_len]` for sequences, whose burn-in
      steps get no priority. None if the algorithm computes no priorities.
    - `steps`: The number of gradient updates made.
    - `skipped`: The number of gradient updates skipped because a loss or a gradient was not finite.
    - `columns`: New values `[B, ...]`, by name, of columns that replay stores. Replay replaces the old values. The
      constant `WRITES` of the algorithm's module lists the names.
    """

    metrics: Mapping[str, Tensor]
    priorities: Tensor | None = None
    steps: int = 1
    skipped: int = 0
    columns: Mapping[str, Tensor] = field(default_factory=dict)


class Policy(ABC):
    """Chooses actions for E environments at once. A subclass draws all random numbers from the generator `self.rng`."""

    rng: np.random.Generator

    @classmethod
    def check(cls, config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
        """Raise Refused if the algorithm does not support these options. drl-cli calls this method before every run."""

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        """Return the shape and dtype of each extra column, by name. The default is no extra columns.

        Extra columns are the columns that `act` returns besides `action`, such as PPO's log-probability of the action.
        """
        return {}

    @abstractmethod
    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None: ...

    @abstractmethod
    def load(self, params: Array) -> None:
        """Load the vector `[size]` that `Algorithm.policy_params` returned. Raise ValueError if the size is wrong."""

    def explore(self, values: Mapping[str, Any]) -> None:  # Any: a float, or an array
        """Set the exploration values, such as epsilon, that the next calls of `act` use.

        `values` maps names to numbers, as `Algorithm.exploration` returns them. With worker.exploration=env_ladder,
        each value is an array `[E]` with one number for each environment.
        """

    @abstractmethod
    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        """Choose actions with exploration for observations `[E, ...]`.

        Return the column `action` `[E, ...]` and the extra columns `[E, ...]`. Box actions are in [-1, 1], and discrete
        actions are integers from 0. A recurrent policy needs `last`, the previous step of the same environments.
        """

    @abstractmethod
    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        """Draw actions uniformly from the action space. Return the same columns as `act`."""

    def priorities(self, rows: Columns) -> Array:
        """Return the initial priorities `[N]`, such as |TD error|, of N new n-step transitions.

        `rows` has the columns `[N, ...]` of the transitions, with the extra columns of `act`. With replay=sequences,
        `rows` has N sequences of L = burn_in + seq_len steps, `[N, L, ...]`, and the priorities `[N, seq_len]` are
        those of the steps after the burn-in. With replay=windows, the priority of a step is used for the window that
        begins with this step. Workers call this method only with replay.initial_priority=worker.
        """
        raise NotImplementedError

    def reanalyze(self, obs: Obs) -> Columns:
        """Compute columns of stored steps again, with newer parameters and without exploration.

        `obs` `[E, ...]` has the observations of the steps. Return the new values `[E, ...]` by name, such as the policy
        that a tree search finds. Re-analyser processes call this method and write the values into replay.
        """
        raise NotImplementedError

    @abstractmethod
    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        """Return the actions `[E, ...]` without exploration for observations `[E, ...]`."""

    def state(self) -> State:
        """Return what a checkpoint saves: the state of the random generator, and the recurrent state if it exists."""
        return {"rng": rng_state(self.rng)}

    def load_state(self, state: State) -> None:
        """Restore a state that `state` returned. The arrays may be read-only, so copy the arrays that change later."""
        set_rng_state(self.rng, state["rng"])


class Algorithm(ABC):
    """Learns from batches in a trainer process.

    A subclass makes `params` and `optimizer` in its constructor and defines `update`. Checkpoints save only what
    `params` and `optimizer` contain. `params` consists of named parts, such as one part for each network.
    `policy_parts` lists the parts that the Policy needs, in the order in which `Policy.load` reads them.
    """

    policy_parts: tuple[str, ...]
    is_one_step = True
    """Whether `update` makes exactly one gradient step. Only then can drl-cli compile the whole update."""
    makes_n_steps = False
    """Whether `learn` replaces the 1-step rewards of sequences by n-step rewards."""
    params: Params
    optimizer: Optimizer

    @abstractmethod
    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None: ...

    @abstractmethod
    def update(self, batch: Batch, counts: Counts) -> Update:
        """Learn from one batch, without changing the batch. Return metrics, priorities and the number of updates.

        Compute gradients with `optimizer.minimize(loss)` or `loss.backward()`, or write gradients into `params.grad`.
        Change parameters only through `optimizer`, which averages the gradients of all trainers.
        """

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        """Return the exploration values by name, such as epsilon, after `env_steps` steps of all workers."""
        return {}

    def learn(self, batch: Batch, counts: Counts) -> Update:
        """Set the learning rates for this position of the run, and call `update`.

        With trainer.on_nonfinite=skip, undo an update whose loss or gradient is not finite, and report it as skipped.
        """
        if recording() is not None:
            # The trainer has set the learning rates. The recorder in drl_cli.chains undoes a skipped update.
            return self.update(batch, counts)
        context = self.optimizer.context
        self.optimizer.schedule(context.clock.of(counts))
        if not context.skips:  # trainer.on_nonfinite is not skip
            return self.update(batch, counts)
        params = {name: tensor.clone() for name, tensor in self.params.tensors().items()}
        optimizer_state = {name: tensor.clone() for name, tensor in self.optimizer.rule.state().items()}
        try:
            return self.update(batch, counts)
        except NotFinite:
            load_tensors(self.params.tensors(), params)
            self.optimizer.rule.load_state(optimizer_state)
            return Update({}, steps=0, skipped=1)

    def policy_params(self) -> Array:
        """Return a float32 copy of the parameters that the policy needs, as one vector `[size]`."""
        return self.params.vector(self.policy_parts)

    def load_policy(self, params: Array) -> None:
        """Load a vector that `policy_params` of another run returned, also into the target networks of these parts.

        All other parameters keep their values. Raise ValueError if the number of parameters differs.
        """
        self.params.load_vector(self.policy_parts, params)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors of the algorithm, by name, that a checkpoint saves.

        With them, a resumed algorithm learns from the same batches as if it had not stopped, bit for bit.
        """
        return self.params.state() | self.optimizer.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned. Raise ValueError if names or shapes differ."""
        self.optimizer.load_state(state)
        self.params.load_state(state)
