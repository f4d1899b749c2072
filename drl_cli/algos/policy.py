"""Policies that draw random actions, and NetworkPolicy, which evaluates its network in numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.losses.policy import permitted
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import ActingEncoder, action_mask, memory_columns
from drl_cli.networks.head import Head
from drl_cli.networks.mlp import mlp_numpy, mlp_shapes, split
from drl_cli.types import ActionSpec, Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State, num_rows


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

    The greedy discrete action is the legal action with the largest output. The greedy box action with A dimensions is
    the tanh of the first A outputs if `is_squashed` is True. Otherwise, it is the first A outputs, clipped to [-1, 1]
    unless the action space lacks a bound. `shapes` has the shapes of the head's parameters.
    """

    is_squashed = False
    outputs = 1
    """Number of the head's outputs for each discrete action, or for each dimension of a box action."""

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(spec, seed)
        self.network = network
        self.encoder = ActingEncoder(network, spec)
        size = self.outputs * spec.action.size
        self.shapes = mlp_shapes(self.encoder.size, network.hidden, size, layer_norm=network.layer_norm)
        self.params: list[Array] = []

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return memory_columns(network)

    def load(self, params: Array) -> None:
        of_head = self.encoder.load(params)  # the encoder returns the parameters after its own
        self.params = split(of_head, self.shapes)

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
        is_squashed = self.action.kind == "box" and self.is_squashed
        return mlp_head(self.encoder, self.params, self.network, self.action.size, is_squashed)

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        _, columns = self.encoder(obs, last)  # a recurrent encoder updates its state, also if the actions are random
        return {"action": self.draw(obs), **columns}

    def state(self) -> State:
        state, recurrent_states = super().state(), self.encoder.states
        if recurrent_states is not None:
            state["memory"] = recurrent_states.copy()
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.encoder.states = state["memory"].copy() if "memory" in state else None


def mlp_head(
    encoder: ActingEncoder, params: Sequence[Array], network: NetworkConfig, size: int, is_squashed: bool
) -> Head:
    """Return the Head of an encoder and an MLP with these weights and biases, whose first `size` outputs are actions.

    The other outputs are left out, such as SAC's standard deviations.
    """
    from drl_cli.networks.modules import Flat  # imports torch

    inner = encoder.torch_encoder  # None without torso and memory
    torso = None if inner is None else inner.torso
    *hidden_layers, weight, bias = params
    return Head(
        torso=Flat(encoder.inputs) if torso is None else torso,
        memory=None if inner is None else inner.memory,
        layers=[*hidden_layers, weight[:, :size], bias[:size]],
        activation=network.activation,
        layer_norm=network.layer_norm,
        is_squashed=is_squashed,
    )


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
    boundaries = np.cumsum(choices)[:-1]
    components = np.split(values, boundaries, -1)
    return np.stack([component.argmax(-1) for component in components], -1)
