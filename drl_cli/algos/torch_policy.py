"""TorchPolicy: the base class of policies whose networks are torch modules."""

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.losses.distributions import Distribution, distribution
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.optim.context import Context
from drl_cli.optim.params import Params
from drl_cli.types import ActionSpec, Array, Columns, EnvSpec, Obs, PreviousStep, State, map_parts, num_rows
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.torch_ops import one_thread


def random_actions(action: ActionSpec, obs: Obs, rng: np.random.Generator) -> Array:
    """Draw one action for each observation `[E, ...]`, uniformly from the legal actions.

    Return box actions `[E, A]` in [-1, 1], discrete actions int64 `[E]`, or multi-discrete actions int64 `[E, k]`.
    """
    rows, mask = num_rows(obs), action_mask(obs)
    if action.kind == "box":
        return rng.uniform(-1.0, 1.0, (rows, action.size)).astype(np.float32)
    if mask is None and action.kind == "discrete":
        return rng.integers(action.size, size=rows)
    equal_logits = np.zeros((rows, action.size), np.float32)  # all legal actions have the same probability
    actions: Array = distribution(action, equal_logits, None, mask).sample(rng)
    return actions


class RandomActions(Policy):
    """A policy that can draw random actions. TorchPolicy is derived from this class."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.action = spec.action
        self.rng = np.random.default_rng(seed)

    def draw(self, obs: Obs) -> Array:
        """Draw one action `[E, ...]` for each observation `[E, ...]`, uniformly from the legal actions."""
        return random_actions(self.action, obs, self.rng)


RANDOM = "is_random"
"""Name of the extra column that marks random actions of the warm-up, bool `[E]`."""


class TorchPolicy(RandomActions):
    """A policy whose networks are torch modules. The modules run on one thread, without gradients.

    A subclass defines `build`, which makes the modules, and at least one of these two methods:

    - `choose` returns the actions of a deterministic policy. `explored` adds exploration to these actions.
    - `distribution` returns the action distribution of a stochastic policy, and extra columns. If the subclass also
      defines `choose`, then `greedy` returns the actions of `choose`.

    The names and the order of the modules are those of `Algorithm.policy_parts`. A recurrent policy sets `memory_size`.
    If `extra_columns` declares a bool column `is_random`, this class fills the column. The column is True for the
    uniformly random actions before training, because their extra columns come from untrained networks.
    """

    memory_size = 0
    """Length S of one environment's recurrent state, or 0 for a policy without one. `self.memory` is `[E, S]`."""
    searches = True
    """Whether `greedy` calls `choose`. If False, `greedy` calls `prior`, which makes no tree search."""
    exploration: Mapping[str, Any] = MappingProxyType({})  # Any: a float, or an array
    """The exploration values that `explore` got. Empty until the first parameters arrive."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(spec, seed)
        self.config = config
        self.modules = self._made(config, network, spec)
        self.params = Params(Context(torch.device("cpu")), **self.modules)
        self.declared_columns = self.extra_columns(config, network, spec)
        self.memory: Tensor | None = None
        for module in self.modules.values():
            module.eval()

    def _made(self, config: Any, network: NetworkConfig, spec: EnvSpec) -> "dict[str, torch.nn.Module]":
        """Return the modules of this policy by name."""
        return dict(self.build(config, network, spec))

    @staticmethod
    @abstractmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> "Mapping[str, torch.nn.Module]":
        """Make and return the modules that the policy needs, by name."""

    def choose(self, obs: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the actions `[E, ...]` without exploration for observations `[E, ...]`.

        The default is the mode of `distribution`. A recurrent policy also sets `self.memory`, as in `distribution`.
        """
        distribution, _ = self.distribution(obs, None)
        mode: Tensor = distribution.mode
        return mode

    def prior(self, obs: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the actions `[E, ...]` that the networks choose without a tree search.

        A policy whose `choose` makes a tree search overrides this method. drl-export exports these actions. `greedy`
        calls `prior` if `searches` is False.
        """
        return self.choose(obs)

    def explored(self, action: Array, obs: Obs) -> Array:
        """Add exploration to the actions `[E, ...]` that `choose` returned. The default returns them unchanged."""
        return action

    def distribution(
        self, obs: Tensor | dict[str, Tensor], last: PreviousStep | None
    ) -> tuple[Distribution, dict[str, Tensor]]:
        """Return the distribution of the actions, and the extra columns `[E, ...]` such as values.

        `last` is the previous step, as tensors. If `extra_columns` declares `log_prob` or `state`, the base class adds
        these columns. In a recurrent policy, `self.memory` contains the recurrent states before this step, which are 0
        where an episode begins. The method has to set `self.memory` to the recurrent states after this step.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define choose or distribution")

    def sample(self, obs: Tensor | dict[str, Tensor], last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions with exploration `[E, ...]` and the extra columns. The default samples from `distribution`.

        If the policy only defines `choose`, the default returns its actions and no extra columns, and `act` then calls
        `explored` on the actions.
        """
        if not self.is_stochastic:
            return self.choose(obs), {}
        distribution, columns = self.distribution(obs, last)
        if "log_prob" not in self.declared_columns:
            return distribution.sample(self.rng), columns
        action, log_prob = distribution.sample_log_prob(self.rng)
        return action, {**columns, "log_prob": log_prob}

    def warm_up(self, obs: Tensor | dict[str, Tensor], last: PreviousStep | None) -> dict[str, Tensor]:
        """Return the extra columns for uniformly random actions. The default returns the columns of `sample`.

        Override this method if `sample` is slow, or if its columns are wrong before the networks are trained.
        """
        _, columns = self.sample(obs, last)
        return columns

    def load(self, params: Array) -> None:
        self.params.load_vector(list(self.modules), params)

    def explore(self, values: Mapping[str, Any]) -> None:  # Any: a float, or an array
        self.exploration = values

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if self.is_stochastic:
            return self._run("act", obs, last)
        if not (self.declared_columns or self.memory_size):  # no extra columns or recurrent state to compute
            return {"action": self.explored(self.greedy(obs, last), obs)}
        columns = self._run("act", obs, last)
        return {**columns, "action": self.explored(columns["action"], obs)}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if not (self.declared_columns or self.memory_size):
            return {"action": self.draw(obs)}
        # The networks compute the extra columns and the recurrent state, but not the actions.
        columns = self._run("random", obs, last)
        columns["action"] = self.draw(obs)
        if "log_prob" in self.declared_columns:
            columns["log_prob"] = self._random_log_prob(obs)
        if RANDOM in self.declared_columns:
            columns[RANDOM] = np.ones(num_rows(obs), np.bool_)
        return columns

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        return self._run("greedy", obs, last)["action"]

    @property
    def is_stochastic(self) -> bool:
        """Whether the subclass defines `distribution` or `sample`."""
        kind = type(self)
        return kind.distribution is not TorchPolicy.distribution or kind.sample is not TorchPolicy.sample

    def state(self) -> State:
        state = super().state()
        if self.memory is not None:
            state["memory"] = self.memory.numpy().copy()
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.memory = torch.from_numpy(state["memory"].copy()) if "memory" in state else None

    def _run(self, method: str, obs: Obs, last: PreviousStep | None) -> Columns:
        """Return the columns that a method, such as `_act_columns` of the method "act", computes from tensors.

        `self.memory` is first set to 0 where an episode begins.
        """
        with torch.no_grad(), one_thread():
            previous = None
            if last is not None:
                fields = (torch.from_numpy(np.asarray(array)) for array in last)
                previous = PreviousStep(*fields)  # type: ignore[arg-type]
            if self.memory_size:
                assert last is not None, "a policy with memory needs the previous step"
                self.memory = torch.from_numpy(self._memory_of(num_rows(obs), last))
            columns = getattr(self, f"_{method}_columns")(map_parts(torch.from_numpy, obs), previous)
        return {name: column.numpy() for name, column in columns.items()}

    def _greedy_columns(self, obs: Any, last: PreviousStep | None) -> "dict[str, Tensor]":
        """Return the actions of evaluations."""
        if self.memory_size and type(self).choose is TorchPolicy.choose:
            # The default `choose` calls `distribution` without the previous step, which a recurrent policy needs.
            return {"action": self.distribution(obs, last)[0].mode}
        return {"action": self.choose(obs) if self.searches else self.prior(obs)}

    def _act_columns(self, obs: Any, last: PreviousStep | None) -> "dict[str, Tensor]":
        """Return what `sample` returns, as columns, and the columns `state` and `is_random` if they are declared."""
        more = self._declared(obs)
        action, columns = self.sample(obs, last)
        return {"action": action, **columns, **more}

    def _random_columns(self, obs: Any, last: PreviousStep | None) -> "dict[str, Tensor]":
        """Return what `_act_columns` returns, but with the extra columns of `warm_up`, and without actions."""
        more = self._declared(obs)
        return {**self.warm_up(obs, last), **more}

    def _declared(self, obs: Any) -> "dict[str, Tensor]":
        """Return the column `state` `[E, S]`, the recurrent states before this step, and `is_random`, if declared."""
        columns = {}
        if "state" in self.declared_columns and self.memory is not None:
            columns["state"] = self.memory
        if RANDOM in self.declared_columns:
            columns[RANDOM] = torch.zeros(num_rows(obs), dtype=torch.bool)
        return columns

    def _memory_of(self, rows: int, last: PreviousStep) -> Array:
        """Return the recurrent states `[E, S]` before this step, which are 0 where an episode begins."""
        memory = None if self.memory is None else np.asarray(self.memory)
        if memory is None or (len(memory) != rows and last.begins.all()):  # other environments than before
            memory = np.zeros((rows, self.memory_size), np.float32)
        return np.where(last.begins[:, None], np.float32(0.0), memory)

    def _random_log_prob(self, obs: Obs) -> Array:
        """Return the log-probability `[E]` of the actions that `draw` returns for these observations."""
        rows, choices = num_rows(obs), self.action.choices
        if self.action.kind == "box":
            return np.full(rows, -self.action.size * np.log(2.0), np.float32)  # the density on [-1, 1] is 1/2
        mask = action_mask(obs)
        legal = np.ones((rows, sum(choices)), np.bool_) if mask is None else mask
        first_columns = np.cumsum([0, *choices[:-1]])  # the first column of each component in the mask
        num_legal = np.add.reduceat(legal, first_columns, 1, dtype=np.float32)  # [E, components]
        log_prob: Array = -np.log(np.maximum(num_legal, 1)).sum(1)  # the maximum avoids the logarithm of 0
        return log_prob
