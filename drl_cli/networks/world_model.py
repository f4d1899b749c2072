"""The networks of MuZero (Schrittwieser et al. 2020, appendices F and G), and two that EfficientZero adds."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp_module import MLP, Network
from drl_cli.types import EnvSpec


class Representation(nn.Module):
    """MuZero's network h, which maps observations `[B, ...]` to latent states `[B, Z]`.

    Z is the width of the last hidden layer.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.network = Network(network, spec, network.hidden[-1])

    def forward(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        return scaled(self.network(obs))


class Dynamics(nn.Module):
    """MuZero's network g, which maps latent states `[B, Z]` and actions `[B, A]` to the next latent states `[B, Z]`.

    The network also returns logits `[B, K]` of the reward. K is `bins`, or 0 if a ValuePrefix predicts sums of rewards
    instead. Discrete actions are one-hot vectors. The MLP has one hidden layer and predicts the change of the latent
    state. `actions` is A.
    """

    def __init__(self, network: NetworkConfig, actions: int, bins: int) -> None:
        super().__init__()
        self.width = network.hidden[-1]
        one_layer = dataclasses.replace(network, hidden=(self.width,))
        self.mlp = MLP(self.width + actions, self.width + bins, one_layer)

    def forward(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        out = self.mlp(torch.cat([latent, action], -1))
        return scaled(latent + out[:, : self.width]), out[:, self.width :]


class Prediction(nn.Module):
    """MuZero's network f, which maps latent states `[B, Z]` to parameters of the policy `[B, P]` and a value.

    The value is given by logits `[B, K]`. `policy` is P, and `bins` is K. The MLP has one hidden layer, and its outputs
    start near 0.
    """

    def __init__(self, network: NetworkConfig, policy: int, bins: int) -> None:
        super().__init__()
        one_layer = dataclasses.replace(network, hidden=network.hidden[-1:])
        self.policy = policy
        self.mlp = MLP(network.hidden[-1], policy + bins, one_layer, last=0.01)

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        out = self.mlp(latent)
        return out[:, : self.policy], out[:, self.policy :]


class ValuePrefix(nn.Module):
    """EfficientZero's network for sums of rewards (Ye et al. 2021, arXiv 2111.00210, section 4.2).

    The network maps the latent state after a step, `[B, Z]`, and a recurrent state `[B, 2 Z]` to logits `[B, K]` and
    the next recurrent state. The logits describe the sum of all rewards since the recurrent state was 0. The network is
    an LSTM with Z units and an MLP with one hidden layer, whose outputs start near 0. `bins` is K.
    """

    def __init__(self, network: NetworkConfig, bins: int) -> None:
        super().__init__()
        width = network.hidden[-1]
        self.cell = nn.LSTMCell(width, width)
        self.mlp = MLP(width, bins, dataclasses.replace(network, hidden=(width,)), last=0.01)

    def forward(self, latent: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = self.cell(latent, state.chunk(2, -1))
        return self.mlp(hidden), torch.cat([hidden, cell], -1)


class ConsistencyMLP(nn.Module):
    """The projection or the predictor of EfficientZero's consistency loss, which map `[..., Z]` to `[..., Z]`.

    The MLP has one hidden layer. EfficientZero uses batch normalisation here. This network uses layer
    norm, if `network.layer_norm` is set, because layer norm does not depend on the other rows of a batch.
    """

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        width = network.hidden[-1]
        self.mlp = MLP(width, width, dataclasses.replace(network, hidden=(width,)))

    def forward(self, latent: Tensor) -> Tensor:
        projected: Tensor = self.mlp(latent)
        return projected


def scaled(latent: Tensor) -> Tensor:
    """Return latent states `[B, Z]`, each scaled to a smallest value of 0 and a largest value of almost 1.

    If all values of a state are equal, the result is 0: 1e-5 avoids 0 / 0. The source is MuZero (appendix G).
    """
    low, high = latent.amin(-1, keepdim=True), latent.amax(-1, keepdim=True)
    return (latent - low) / (high - low + 1e-5)
