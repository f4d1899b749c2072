"""A categorical critic that also predicts the next embedding, for REPPO."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp_module import MLP, Embedding


class PredictiveCritic(nn.Module):
    """Features `[B, F]` and actions `[B, A]` -> logits `[B, K]`, embedding and predicted next embedding `[B, Z]`.

    The encoder has the hidden layers of `network`. Its output, after layer norm and activation, is the embedding. Z is
    the width of the last hidden layer. The head computes the logits, and the predictor the next embedding, with one
    hidden layer each.
    """

    def __init__(self, network: NetworkConfig, features: int, actions: int, outputs: int) -> None:
        super().__init__()
        *_, width = network.hidden
        self.encoder = Embedding(features + actions, width, network)
        one_layer = dataclasses.replace(network, hidden=(width,))
        self.head = MLP(width, outputs, one_layer, last=0.01)
        self.predictor = MLP(width, width, one_layer)
        self.sizes = [mlp.dropout_size for mlp in (self.encoder, self.head, self.predictor)]

    @property
    def dropout_size(self) -> int:
        """The number of hidden units. `masks` needs this number of random values for each row."""
        return sum(self.sizes)

    def masks(self, uniform: Tensor, rate: float) -> list[Tensor]:
        """Return dropout masks for `forward`; `uniform` `[B, dropout_size]` has random numbers in [0, 1)."""
        parts = zip((self.encoder, self.head, self.predictor), torch.split(uniform, self.sizes, 1), strict=True)
        return [mask for mlp, part in parts for mask in mlp.masks(part, rate)]

    def forward(self, features: Tensor, action: Tensor, masks: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, embedding and predicted next embedding. Dropout masks multiply the hidden layers' outputs."""
        embedding = self.encoder(torch.cat([features, action], -1), masks[:-2])
        return self.head(embedding, masks[-2:-1]), embedding, self.predictor(embedding, masks[-1:])
