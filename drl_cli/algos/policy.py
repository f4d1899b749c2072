"""Base classes of policies: NetworkPolicy evaluates an MLP in numpy, TorchPolicy evaluates torch modules."""

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
"""A function that returns actions `[E, ...]` and extra columns, as `TorchPolicy.sample`."""


def random_actions(action: ActionSpec, obs: Obs, rng: np.random.Generator) -> Array:
    """Return one uniformly random legal action for each observation `[E, ...]`."""
    rows, mask = num_rows(obs), action_mask(obs)
    if action.kind == "box":
        return rng.uniform(-1.0, 1.0, (rows, action.size)).astype(np.float32)
    if mask is None and action.kind == "discrete":
        return rng.integers(action.size, size=rows)
    logits = np.zeros((rows, action.size), np.float32)
    return sample_choices(permitted(logits, mask), action.choices, rng)


class RandomActions(Policy):
    """The base class of the policies below. It draws uniformly random legal actions."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.action = spec.action
        self.rng = np.random.default_rng(seed)

    def draw(self, obs: Obs) -> Array:
        """Return one random legal action for each observation `[E, ...]`."""
        return random_actions(self.action, obs, self.rng)


class NetworkPolicy(RandomActions):
    """A policy with an encoder and one MLP, the head, in numpy. `shapes` has the shapes of the head's parameters.

    The greedy discrete action is the action with the largest output. The greedy box action consists of the head's first
    outputs, one for each dimension, or of the tanh of these outputs if `is_squashed`.
    """

    is_squashed = False
    outputs = 1
    """Number of the head's outputs for each discrete action or each dimension of a box action."""

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
        """Return the head's outputs for observations `[E, ...]`, and the column `state` if the encoder has a memory."""
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

        learner, network, size = self.encoder.learner, self.network, self.action.size
        torso = None if learner is None else learner.torso
        *params, weight, bias = self.params
        return Head(
            torso=Flat(self.encoder.inputs) if torso is None else torso,
            memory=learner.memory if learner else None,
            layers=[*params, weight[:, :size], bias[:size]],  # without the outputs for SAC's standard deviations
            activation=network.activation,
            layer_norm=network.layer_norm,
            is_squashed=self.action.kind == "box" and self.is_squashed,
        )

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        return {"action": self.draw(obs), **self.encoder(obs, last)[1]}

    def state(self) -> State:
        memory = self.encoder.memory
        return super().state() | ({} if memory is None else {"memory": memory.copy()})

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.encoder.memory = state["memory"].copy() if "memory" in state else None


class TorchPolicy(RandomActions):
    """A policy that consists of ordinary torch modules. The modules run on one thread, without gradients.

    A subclass defines `build` and one of these:

    - `choose`, for a deterministic policy, and `explored` to explore
    - `distribution`, for a stochastic policy, which may have extra columns

    If the subclass defines both, `greedy` calls `choose`. A policy may have a memory. If `extra_columns` declares
    `is_random` (bool), the base class adds this column. It is True for the random actions of the warm-up, whose extra
    columns come from untrained networks.

    `build` must return the modules under the same names and in the same order as `Algorithm.policy_parts`.
    """

    memory_size = 0
    """Length of the recurrent state of one environment; `self.memory` is `[E, memory_size]`. 0 without a memory."""
    searches = True
    """Whether `greedy` calls `choose`. If False, `greedy` calls `prior`, which makes no tree search."""
    exploration: Mapping[str, Any] = MappingProxyType({})  # Any: a float, or an array
    """The exploration values, as `explore` gets them. Empty until the first parameters arrive."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(spec, seed)
        self.config = config
        self.modules = dict(self.build(config, network, spec))
        self.params = Params(Context(torch.device("cpu")), **self.modules)
        self.columns = self.extra_columns(config, network, spec)
        self.memory: Tensor | None = None
        for module in self.modules.values():
            module.eval()

    @staticmethod
    @abstractmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> "Mapping[str, torch.nn.Module]":
        """Return the modules that the policy needs (name -> module)."""

    def choose(self, obs: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the best actions `[E, ...]` for observations `[E, ...]`; the default is the distribution's mode.

        A policy with a memory reads and sets `self.memory`, as in `distribution`.
        """
        mode: Tensor = self.distribution(obs, None)[0].mode
        return mode

    def prior(self, obs: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the best actions `[E, ...]` that the networks give without a tree search. drl-export exports these.

        A policy whose `choose` makes a tree search overrides this method. `greedy` calls `prior` if `searches` is
        False.
        """
        return self.choose(obs)

    def explored(self, action: Array, obs: Obs) -> Array:
        """Return exploring actions, given the best actions `[E, ...]`; the default returns `action` unchanged."""
        return action

    def distribution(
        self, obs: Tensor | dict[str, Tensor], last: PreviousStep | None
    ) -> tuple[Distribution, dict[str, Tensor]]:
        """Return the distribution of the actions, and extra columns `[E, ...]` such as values.

        `last` has tensors. If `extra_columns` declares `log_prob` or `state`, the base class adds these two columns.
        With a memory, `self.memory` has the recurrent states before this step, 0 where an episode begins; set
        `self.memory` to the states after this step.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define choose or distribution")

    def sample(self, obs: Tensor | dict[str, Tensor], last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return exploring actions `[E, ...]` and all extra columns; the default samples from `distribution`."""
        if not self.is_stochastic:
            return self.choose(obs), {}
        distribution, columns = self.distribution(obs, last)
        if "log_prob" not in self.columns:
            return distribution.sample(self.rng), columns
        action, log_prob = distribution.sample_log_prob(self.rng)
        return action, {**columns, "log_prob": log_prob}

    def warm_up(self, obs: Tensor | dict[str, Tensor], last: PreviousStep | None) -> dict[str, Tensor]:
        """Return the extra columns of random actions. The default returns the columns of the policy's own actions.

        Override this method if `sample` is slow, or if its columns are wrong before the networks are trained.
        """
        return self.sample(obs, last)[1]

    def load(self, params: Array) -> None:
        self.params.load_vector(list(self.modules), params)

    def explore(self, values: Mapping[str, Any]) -> None:  # Any: a float, or an array
        self.exploration = values

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if self.is_stochastic:
            return self._columns(obs, last, self.sample)
        if not (self.columns or self.memory_size):
            return {"action": self.explored(self.greedy(obs, last), obs)}
        columns = self._columns(obs, last, self.sample)
        return {**columns, "action": self.explored(columns["action"], obs)}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        if not (self.columns or self.memory_size):
            return {"action": self.draw(obs)}
        columns = self._columns(obs, last, self._warm_up)
        columns["action"] = self.draw(obs)
        if "log_prob" in self.columns:
            columns["log_prob"] = self._random_log_prob(obs)
        if RANDOM in self.columns:
            columns[RANDOM] = np.ones(num_rows(obs), np.bool_)
        return columns

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        with torch.no_grad(), one_thread():
            tensors, previous, _ = self._tensors(obs, last)
            if self.memory_size and type(self).choose is TorchPolicy.choose:  # `choose` would not pass `previous` on
                mode: Array = self.distribution(tensors, previous)[0].mode.numpy()
                return mode
            action = self.choose(tensors) if self.searches else self.prior(tensors)
        best: Array = action.numpy()
        return best

    @property
    def is_stochastic(self) -> bool:
        """True if the subclass defines `distribution` or `sample`."""
        kind = type(self)
        return kind.distribution is not TorchPolicy.distribution or kind.sample is not TorchPolicy.sample

    def state(self) -> State:
        return super().state() | ({} if self.memory is None else {"memory": self.memory.numpy().copy()})

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.memory = torch.from_numpy(state["memory"].copy()) if "memory" in state else None

    def _columns(self, obs: Obs, last: PreviousStep | None, sample: Sample) -> Columns:
        """Return the actions and extra columns of `sample`, plus the columns that the base class adds."""
        with torch.no_grad(), one_thread():
            tensors, previous, before = self._tensors(obs, last)
            action, columns = sample(tensors, previous)
        if "state" in self.columns:
            columns = {**columns, **before}
        if RANDOM in self.columns:
            columns = {**columns, RANDOM: torch.zeros(num_rows(obs), dtype=torch.bool)}
        return {"action": action.numpy(), **{name: column.numpy() for name, column in columns.items()}}

    def _warm_up(self, obs: Any, last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.zeros(0), self.warm_up(obs, last)

    def _tensors(self, obs: Obs, last: PreviousStep | None) -> tuple[Any, PreviousStep | None, dict[str, Tensor]]:
        """Return observations and the previous step as tensors, and the column `state` of a policy with a memory.

        Set the states in `self.memory` to 0 where an episode begins.
        """
        tensors = map_parts(torch.from_numpy, obs)
        previous = None if last is None else PreviousStep(*(torch.from_numpy(np.asarray(part)) for part in last))  # type: ignore[arg-type]
        if not self.memory_size:
            return tensors, previous, {}
        assert last is not None, "a policy with memory needs the previous step"
        rows = num_rows(obs)
        if self.memory is None or (len(self.memory) != rows and last.begins.all()):  # new environments
            self.memory = torch.zeros(rows, self.memory_size)
        self.memory = self.memory.masked_fill(torch.from_numpy(last.begins)[:, None], 0.0)
        return tensors, previous, {"state": self.memory}

    def _random_log_prob(self, obs: Obs) -> Array:
        """Return the log-probability `[E]` of the actions that `draw` returns."""
        rows, choices = num_rows(obs), self.action.choices
        if self.action.kind == "box":
            return np.full(rows, -self.action.size * np.log(2.0), np.float32)  # the density on [-1, 1] is 1/2
        mask = action_mask(obs)
        legal = np.ones((rows, sum(choices)), np.bool_) if mask is None else mask
        counts = np.add.reduceat(legal, np.cumsum([0, *choices[:-1]]), 1, dtype=np.float32)
        log_prob: Array = -np.log(np.maximum(counts, 1)).sum(1)
        return log_prob


def sample_choices(logits: Array, choices: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Sample each choice from the softmax of its logits: `[n, sum(choices)]` -> int64 `[n]`, or `[n, k]` for k choices.

    This is the Gumbel-max trick: the argmax of logits plus Gumbel noise is a sample from the softmax of the logits.
    """
    return best_choices(logits + rng.gumbel(size=logits.shape), choices)


def best_choices(values: Array, choices: tuple[int, ...]) -> Array:
    """Return the argmax of each choice's values: `[n, sum(choices)]` -> int64 `[n]`, or `[n, k]` for k choices."""
    if len(choices) <= 1:
        best: Array = values.argmax(-1)
        return best
    return np.stack([part.argmax(-1) for part in np.split(values, np.cumsum(choices)[:-1], -1)], -1)
