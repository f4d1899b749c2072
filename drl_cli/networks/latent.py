"""The networks of MR.Q that are not plain MLPs: the encoder of state-action pairs, and the critics."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp_module import MLP
from drl_cli.networks.modules import ACTIVATIONS


class PairEncoder(nn.Module):
    """g: embeddings zs `[B, Z]` and actions `[B, A]` -> embeddings zsa `[B, Z]`. Discrete actions are one-hot."""

    def __init__(self, network: NetworkConfig, actions: int) -> None:
        super().__init__()
        width = network.hidden[-1]
        action_width = (width + 1) // 2
        self.action = MLP(actions, action_width, dataclasses.replace(network, hidden=()))
        self.activation = ACTIVATIONS[network.activation]()
        self.mlp = MLP(width + action_width, width, network)

    def forward(self, zs: Tensor, action: Tensor) -> Tensor:
        embedding: Tensor = self.mlp(torch.cat([zs, self.activation(self.action(action))], -1))
        return embedding


class Critics(nn.Module):
    """Two critics of embeddings zsa `[B, Z]`. They return values `[2, B]` and the reward scale `[1]`.

    The values are in units of the reward scale. `seen` has the sum and the number of the batches' mean absolute rewards
    since the last call of `rescale`.
    """

    scale: Tensor
    seen: Tensor

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        *_, width = network.hidden
        self.mlp = MLP(width, 1, dataclasses.replace(network, hidden=(*network.hidden, width)), ensemble=2)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, zsa: Tensor, masks: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        return self.mlp(zsa, masks).squeeze(-1), self.scale

    def observe(self, mean_reward: Tensor) -> None:
        """Add the mean absolute reward of a batch, `[]`, to `seen`."""
        self.seen[0] += mean_reward
        self.seen[1] += 1.0

    def rescale(self) -> None:
        """Set the reward scale to the mean absolute reward since the last call, unless all rewards were 0."""
        total, count = self.seen.unbind()
        self.scale.copy_(torch.where(total == 0, self.scale, total / count))
        self.seen.zero_()
