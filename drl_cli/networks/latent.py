"""The networks of MR.Q: encoders of states and of state-action pairs, a linear model, critics and an actor."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp_module import MLP
from drl_cli.networks.modules import ACTIVATIONS
from drl_cli.networks.torsos import torso, torso_name
from drl_cli.types import EnvSpec


class StateEncoder(nn.Module):
    """f: observations `[B, ...]` -> embeddings zs `[B, Z]`, with layer norm and an activation after the last layer.

    Z is the width of the last hidden layer. One linear layer follows the convolutions of an image.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.torso, self.activation = torso(network, spec), ACTIVATIONS[network.activation]()
        hidden = network.hidden if torso_name(network, spec) is None else ()
        size: int = self.torso.size  # type: ignore[assignment]
        self.mlp = MLP(size, network.hidden[-1], dataclasses.replace(network, hidden=hidden))

    def forward(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        out = self.mlp(self.torso(obs))
        embedding: Tensor = self.activation(nn.functional.layer_norm(out, out.shape[-1:]))
        return embedding


class PairEncoder(nn.Module):
    """g: embeddings zs `[B, Z]` and actions `[B, A]` -> embeddings zsa `[B, Z]`. Discrete actions are one-hot."""

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        super().__init__()
        width = network.hidden[-1]
        self.action = MLP(spec.action.size, -(-width // 2), dataclasses.replace(network, hidden=()))
        self.activation = ACTIVATIONS[network.activation]()
        self.mlp = MLP(width + -(-width // 2), width, network)

    def forward(self, zs: Tensor, action: Tensor) -> Tensor:
        embedding: Tensor = self.mlp(torch.cat([zs, self.activation(self.action(action))], -1))
        return embedding


class Critics(nn.Module):
    """Two critics of embeddings zsa `[B, Z]`: returns values `[2, B]` and the reward scale in whose units they are.

    `seen` has the sum and the number of the mean absolute rewards since the last call of `rescale`.
    """

    scale: Tensor
    seen: Tensor

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        *_, width = network.hidden
        self.mlp = MLP(width, 1, dataclasses.replace(network, hidden=(*network.hidden, width)), ensemble=2)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, zsa: Tensor) -> tuple[Tensor, Tensor]:
        return self.mlp(zsa).squeeze(-1), self.scale

    def observe(self, mean_reward: Tensor) -> None:
        """Add the mean absolute reward of a batch."""
        self.seen[0] += mean_reward
        self.seen[1] += 1.0

    def rescale(self) -> None:
        """Set the scale to the mean absolute reward since the last call, unless all rewards were 0."""
        total, count = self.seen.unbind()
        self.scale.copy_(torch.where(total == 0, self.scale, total / count))
        self.seen.zero_()


def linear_model(network: NetworkConfig, bins: int) -> MLP:
    """Return m, one layer: zsa `[B, Z]` -> termination, next zs and logits of the reward, `[B, 1 + Z + bins]`."""
    width = network.hidden[-1]
    return MLP(width, 1 + width + bins, dataclasses.replace(network, hidden=()))


def make_actor(network: NetworkConfig, spec: EnvSpec) -> MLP:
    """Return the actor: zs `[B, Z]` -> actions before tanh, or logits, `[B, A]`."""
    return MLP(network.hidden[-1], spec.action.size, dataclasses.replace(network, activation="relu"))
