"""Policies to build on: heads in numpy behind an encoder, or modules of torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.algos.base import Policy
from drl_cli.losses.policy import FORBIDDEN
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import ActingEncoder, action_mask, memory_columns
from drl_cli.networks.mlp import mlp_numpy, mlp_shapes, split
from drl_cli.optim.group import Context
from drl_cli.optim.params import Params
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, Schema, State, num_rows
from drl_cli.utils.lazy import torch
from drl_cli.utils.torch_ops import one_thread

if TYPE_CHECKING:
    from torch import Tensor


class RandomActions(Policy):
    """What every policy has alike: actions drawn uniformly from those that are allowed."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self.action = spec.action
        self.rng = np.random.default_rng(seed)

    def draw(self, obs: Obs) -> Array:
        """One action for each observation `[E, ...]`, uniformly from the action space."""
        rows, mask = num_rows(obs), action_mask(obs)
        if self.action.kind == "box":
            return self.rng.uniform(-1.0, 1.0, (rows, self.action.size)).astype(np.float32)
        if mask is None and self.action.kind == "discrete":
            return self.rng.integers(self.action.size, size=rows)
        logits = np.zeros((rows, self.action.size)) if mask is None else np.where(mask, 0.0, FORBIDDEN)
        return sample_choices(logits, self.action.choices, self.rng)


class NetworkPolicy(RandomActions):
    """A head that is a plain MLP, in numpy, on the features of an encoder: `shapes` are those of its parameters.

    The best choice has the head's largest output. The best action of a box is the head's first outputs, or their tanh
    where the policy `is_squashed`.
    """

    is_squashed = False
    outputs = 1
    """Of the head, for each action (discrete) or action dimension (box)."""

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
        """What the MLP gives for observations `[E, ...]`, and the columns of the encoder's memory."""
        features, columns = self.encoder(obs, last)
        return mlp_numpy(self.params, features, self.network.activation), columns

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        out, _ = self.forward(obs, last)
        if self.action.kind != "box":
            return best_choices(allowed(out, obs), self.action.choices)
        action = out[:, : self.action.size]
        if self.is_squashed:
            return np.tanh(action)
        return action if self.action.is_free else np.clip(action, -1.0, 1.0)

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        return {"action": self.draw(obs), **self.encoder(obs, last)[1]}

    def state(self) -> State:
        memory = self.encoder.memory
        return super().state() | ({} if memory is None else {"memory": memory.copy()})

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.encoder.memory = state["memory"].copy() if "memory" in state else None


class TorchPolicy(RandomActions):
    """A policy of ordinary modules, on one thread: `build` makes them, `load` fills them in the order of their names.

    Their names are those of `Algorithm.policy_parts`.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        super().__init__(spec, seed)
        self.config = config
        self.modules = dict(self.build(config, network, spec))
        self.params = Params(Context(torch.device("cpu")), **self.modules)
        for module in self.modules.values():
            module.eval()

    @staticmethod
    @abstractmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> Mapping[str, torch.nn.Module]:
        """The modules that act, by name."""

    @abstractmethod
    def choose(self, obs: Tensor | dict[str, Tensor]) -> Tensor:
        """The best action for each observation `[E, ...]`."""

    def explored(self, action: Array, obs: Obs) -> Array:
        """What is done instead of the best action `[E, ...]` in order to explore; without more, the same."""
        return action

    def load(self, params: Array) -> None:
        self.params.load_vector(list(self.modules), params)

    def act(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        return {"action": self.explored(self.greedy(obs, last), obs)}

    def random(self, obs: Obs, last: PreviousStep | None = None) -> Columns:
        return {"action": self.draw(obs)}

    def greedy(self, obs: Obs, last: PreviousStep | None = None) -> Array:
        tensors = (
            {n: torch.from_numpy(part) for n, part in obs.items()} if isinstance(obs, dict) else torch.from_numpy(obs)
        )
        with torch.no_grad(), one_thread():
            action: Array = self.choose(tensors).numpy()
        return action


def allowed(values: Array, obs: Obs) -> Array:
    """Values or logits `[n, choices]` with FORBIDDEN where the observation's mask does not allow the action."""
    mask = action_mask(obs)
    return values if mask is None else np.where(mask, values, np.float32(FORBIDDEN))


def sample_choices(logits: Array, choices: tuple[int, ...], rng: np.random.Generator) -> Array:
    """From softmax(logits) of each choice, logits `[n, sum(choices)]`: int64 `[n]` of one choice, `[n, k]` of k.

    The largest logit plus Gumbel noise falls on each choice with its softmax probability.
    """
    return best_choices(logits + rng.gumbel(size=logits.shape), choices)


def best_choices(values: Array, choices: tuple[int, ...]) -> Array:
    """The largest of each choice's values, `[n, sum(choices)]` -> int64 `[n]` of one choice, `[n, k]` of k."""
    if len(choices) <= 1:
        best: Array = values.argmax(-1)
        return best
    return np.stack([part.argmax(-1) for part in np.split(values, np.cumsum(choices)[:-1], -1)], -1)
