"""Base classes of policies. NetworkPolicy evaluates its network in numpy, and TorchPolicy evaluates torch modules."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.losses.distributions import Distribution
from drl_cli.losses.policy import permitted
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import ActingEncoder, action_mask, memory_columns
from drl_cli.networks.head import Head
from drl_cli.networks.mlp import mlp_numpy, mlp_shapes, split
from drl_cli.optim.context import Context
from drl_cli.optim.params import Params
from drl_cli.types import ActionSpec, Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State, map_parts, num_rows
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.torch_ops import one_thread

RANDOM = "is_random"
"""Name of the extra column that marks random actions of the warm-up, bool `[E]`."""
Sample: TypeAlias = "Callable[[Any, PreviousStep | None], tuple[Tensor, dict[str, Tensor]]]"  # Any: the observations
"""A function that returns actions `[E, ...]` and extra columns, such as `TorchPolicy.sample`."""


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
    return sample_choices(permitted(equal_logits, mask), action.choices, rng)


class RandomActions(Policy):
    """A policy that can draw random actions. NetworkPolicy and TorchPolicy are derived from this class."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.action = spec.action
        self.rng = np.random.default_rng(seed)

    def draw(self, obs: Obs) -> Array:
        """Draw one action `[E, ...]` for each observation `[E, ...]`, uniformly from the legal actions."""
        return random_actions(self.action, obs, self.rng)


class NetworkPolicy(RandomActions):
    """A policy whose network is an encoder followed by one MLP, the head. The head is evaluated in numpy.

    The greedy discrete action is the action with the largest output. The greedy box action with A dimensions is the
    first A outputs, or the tanh of the first A outputs if `is_squashed` is True. `shapes` has the shapes of the head's
    parameters.
    """

    is_squashed = False
    outputs = 1
    """Number of the head's outputs for each discrete action, or for each dimension of a box action."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(spec, seed)
        self.network = network
        self.encoder = ActingEncoder(network, spec)
        size = self.outputs * spec.action.size
        self.shapes = mlp_shapes(self.encoder.width, network.hidden, size, network.layer_norm)
        self.params: list[Array] = []

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return memory_columns(network)

    def load(self, params: Array) -> None:
        self.params = split(self.encoder.load(params), self.shapes)

    def forward(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        """Evaluate the network for observations `[E, ...]` and the previous steps `last`.

        Return the outputs of the last layer `[E, H]`, and the extra columns: `state` if the encoder is recurrent, else
        {}. H is `outputs` (of this class) times the action's size, unless a subclass has other `shapes`.
        """
        features, columns = self.encoder(obs, last)
        return mlp_numpy(self.params, features, self.network.activation), columns

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        out, _ = self.forward(obs, last)
        if self.action.kind != "box":
            return best_choices(permitted(out, action_mask(obs)), self.action.choices)
        action = out[:, : self.action.size]
        if self.is_squashed:
            return np.tanh(action)
        return action if self.action.is_free else np.clip(action, -1.0, 1.0)

    def exported_head(self) -> Head:
        from drl_cli.networks.modules import Flat  # imports torch

        modules = self.encoder.learner  # torso and memory as torch modules, or None if neither is needed
        torso = None if modules is None else modules.torso
        *hidden_layers, weight, bias = self.params
        size = self.action.size  # leaves out the outputs that are not actions, such as SAC's standard deviations
        return Head(
            torso=Flat(self.encoder.inputs) if torso is None else torso,
            memory=None if modules is None else modules.memory,
            layers=[*hidden_layers, weight[:, :size], bias[:size]],
            activation=self.network.activation,
            layer_norm=self.network.layer_norm,
            is_squashed=self.action.kind == "box" and self.is_squashed,
        )

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        _, columns = self.encoder(obs, last)  # a recurrent encoder updates its state, also if the actions are random
        return {"action": self.draw(obs), **columns}

    def state(self) -> State:
        state, memory = super().state(), self.encoder.memory
        if memory is not None:
            state["memory"] = memory.copy()
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.encoder.memory = state["memory"].copy() if "memory" in state else None


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
        self.modules = dict(self.build(config, network, spec))
        self.params = Params(Context(torch.device("cpu")), **self.modules)
        self.declared_columns = self.extra_columns(config, network, spec)
        self.memory: Tensor | None = None
        for module in self.modules.values():
            module.eval()

    @staticmethod
    @abstractmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> "Mapping[str, torch.nn.Module]":
        """Make and return the modules that the policy needs, by name."""

    def choose(self, obs: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the actions `[E, ...]` without exploration for observations `[E, ...]`.

        The default is the mode of `distribution`. A recurrent policy reads and sets `self.memory`, as in
        `distribution`.
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

        For a policy that only defines `choose`, the default returns the actions of `choose` and no extra columns.
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
            return self._evaluate(obs, last, self.sample)
        if not (self.declared_columns or self.memory_size):  # no extra columns or recurrent state to compute
            return {"action": self.explored(self.greedy(obs, last), obs)}
        columns = self._evaluate(obs, last, self.sample)
        return {**columns, "action": self.explored(columns["action"], obs)}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if not (self.declared_columns or self.memory_size):
            return {"action": self.draw(obs)}
        # The networks compute the extra columns and the recurrent state, but not the actions.
        columns = self._evaluate(obs, last, self._sample_warm_up)
        columns["action"] = self.draw(obs)
        if "log_prob" in self.declared_columns:
            columns["log_prob"] = self._random_log_prob(obs)
        if RANDOM in self.declared_columns:
            columns[RANDOM] = np.ones(num_rows(obs), np.bool_)
        return columns

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        with torch.no_grad(), one_thread():
            tensors, previous, _ = self._tensors(obs, last)
            if self.memory_size and type(self).choose is TorchPolicy.choose:
                # The default `choose` calls `distribution` without the previous step, which a recurrent policy needs.
                distribution, _ = self.distribution(tensors, previous)
                action = distribution.mode
            else:
                action = self.choose(tensors) if self.searches else self.prior(tensors)
        greedy: Array = action.numpy()
        return greedy

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

    def _evaluate(self, obs: Obs, last: PreviousStep | None, sample: Sample) -> Columns:
        """Call `sample` with tensors, and return its actions and extra columns as arrays.

        If `extra_columns` declares `state` (the recurrent state) or `is_random`, add these columns.
        """
        with torch.no_grad(), one_thread():
            tensors, previous, state = self._tensors(obs, last)
            action, columns = sample(tensors, previous)
        if "state" in self.declared_columns:
            columns = {**columns, **state}
        if RANDOM in self.declared_columns:
            columns = {**columns, RANDOM: torch.zeros(num_rows(obs), dtype=torch.bool)}
        return {"action": action.numpy(), **{name: column.numpy() for name, column in columns.items()}}

    def _sample_warm_up(self, obs: Any, last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Call `warm_up`. Return its extra columns as `sample` does, with an empty tensor in place of the actions."""
        return torch.zeros(0), self.warm_up(obs, last)

    def _tensors(self, obs: Obs, last: PreviousStep | None) -> tuple[Any, PreviousStep | None, dict[str, Tensor]]:
        """Convert the observations and the previous step to tensors. Set `self.memory` to 0 where an episode begins.

        Return the observations, the previous step, and a dict. If the policy is recurrent, the dict has the column
        `state` `[E, S]`, the recurrent states before this step. Otherwise, the dict is empty.
        """
        tensors = map_parts(torch.from_numpy, obs)
        previous = None
        if last is not None:
            fields = (torch.from_numpy(np.asarray(array)) for array in last)
            previous = PreviousStep(*fields)  # type: ignore[arg-type]
        if not self.memory_size:
            return tensors, previous, {}
        assert last is not None, "a policy with memory needs the previous step"
        rows = num_rows(obs)
        if self.memory is None or (len(self.memory) != rows and last.begins.all()):  # other environments than before
            self.memory = torch.zeros(rows, self.memory_size)
        begins = torch.from_numpy(last.begins)
        self.memory = self.memory.masked_fill(begins[:, None], 0.0)
        return tensors, previous, {"state": self.memory}

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


def sample_choices(logits: Array, choices: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Sample discrete actions `[n]`, or multi-discrete actions `[n, k]`, from the softmax of each component's logits.

    `choices` has the number of choices of each of the k components. `logits` `[n, sum(choices)]` has the logits of all
    components, one after the other. The argmax of logits plus Gumbel noise is a sample of the softmax (Gumbel-max).
    """
    return best_choices(logits + rng.gumbel(size=logits.shape), choices)


def best_choices(values: Array, choices: tuple[int, ...]) -> Array:
    """Return the discrete actions `[n]`, or multi-discrete actions `[n, k]`, with the largest value in each component.

    `choices` has the number of choices of each of the k components. `values` `[n, sum(choices)]` has the values of all
    components, one after the other.
    """
    if len(choices) <= 1:
        best: Array = values.argmax(-1)
        return best
    components = np.split(values, np.cumsum(choices)[:-1], -1)
    return np.stack([component.argmax(-1) for component in components], -1)
