"""A categorical critic that also predicts the next embedding, for REPPO."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp_module import MLP
from drl_cli.networks.modules import ACTIVATIONS
from drl_cli.networks.torsos import torso
from drl_cli.types import EnvSpec


class PredictiveCritic(nn.Module):
    """Observations `[B, ...]` and actions `[B, A]` -> logits `[B, K]`, embedding and predicted next embedding `[B, Z]`.

    The encoder has the hidden layers of `network`. Its output, after layer norm and activation, is the embedding. Z is
    the width of the last hidden layer. The head (logits) and the predictor have one hidden layer each.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec, outputs: int) -> None:
        super().__init__()
        self.torso, self.activation = torso(network, spec), ACTIVATIONS[network.activation]()
        *_, width = network.hidden
        size: int = self.torso.size  # type: ignore[assignment]
        self.encoder = MLP(size + spec.action.size, width, network)
        one_layer = dataclasses.replace(network, hidden=(width,))
        self.head = MLP(width, outputs, one_layer, last=0.01)
        self.predictor = MLP(width, width, one_layer)

    def forward(self, obs: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # Any: see drl.torso
        out = self.encoder(torch.cat([self.torso(obs), action], -1))
        embedding = self.activation(nn.functional.layer_norm(out, out.shape[-1:]))
        return self.head(embedding), embedding, self.predictor(embedding)
