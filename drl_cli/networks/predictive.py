"""A categorical critic that also predicts the next embedding, for REPPO."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from drl_cli.networks.config import NetworkConfig
from drl_cli.utils.deferred import nn, torch
from drl_cli.utils.lazy import Tensor


class PredictiveCritic(nn.Module):
    """REPPO's critic, which maps features `[B, F]` and actions `[B, A]` to logits `[B, K]` of K values of the return.

    An Embedding with the hidden layers of `network` first computes an embedding `[B, Z]`. Z is the width of the last
    hidden layer. The head computes the logits from the embedding, at first almost 0. The predictor predicts the
    embedding of the next step, `[B, Z]`. Head and predictor have one hidden layer each. `features` is F, `actions` is
    A, and `outputs` is K.
    """

    def __init__(self, network: NetworkConfig, features: int, actions: int, outputs: int) -> None:
        super().__init__()
        from drl_cli.networks.mlp_module import MLP, Embedding  # not at the top, because mlp_module.py imports torch

        *_, width = network.hidden
        self.encoder = Embedding(features + actions, width, network)
        one_layer = dataclasses.replace(network, hidden=(width,))
        self.head = MLP(width, outputs, one_layer, last=0.01)
        self.predictor = MLP(width, width, one_layer)
        self.dropout_sizes = [mlp.dropout_size for mlp in (self.encoder, self.head, self.predictor)]

    @property
    def dropout_size(self) -> int:
        """The number of hidden units of all three MLPs. `masks` needs a random number for each of them in each row."""
        return sum(self.dropout_sizes)

    def masks(self, uniform: Tensor, rate: float) -> list[Tensor]:
        """Return a dropout mask `[1, B, width]` for each hidden layer. `forward` takes them as an argument.

        `uniform` `[B, dropout_size]` has random numbers in [0, 1). `rate` is the probability that a unit is dropped.
        """
        of_encoder, of_head, of_predictor = torch.split(uniform, self.dropout_sizes, 1)
        masks = self.encoder.masks(of_encoder, rate)
        return masks + self.head.masks(of_head, rate) + self.predictor.masks(of_predictor, rate)

    def forward(self, features: Tensor, action: Tensor, masks: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, embedding and predicted next embedding.

        `masks` `[1, B, width]` each, from the method `masks`, multiply the outputs of the hidden layers.
        """
        # Head and predictor have one hidden layer each. Without dropout, all three are empty.
        of_encoder, of_head, of_predictor = masks[:-2], masks[-2:-1], masks[-1:]
        embedding = self.encoder(torch.cat([features, action], -1), of_encoder)
        logits = self.head(embedding, of_head)
        return logits, embedding, self.predictor(embedding, of_predictor)
