"""The networks of MR.Q that are not plain MLPs: the encoder of state-action pairs, and the critics."""

import dataclasses
from collections.abc import Sequence

from drl_cli.networks.config import NetworkConfig
from drl_cli.utils.deferred import nn, torch
from drl_cli.utils.lazy import Tensor


class PairEncoder(nn.Module):
    """MR.Q's network g, which maps state embeddings zs `[B, Z]` and actions `[B, A]` to embeddings zsa `[B, Z]`.

    Discrete actions are one-hot vectors. Z is the width of the last hidden layer. One layer first embeds the action in
    half of this width.
    """

    def __init__(self, network: NetworkConfig, actions: int) -> None:
        from drl_cli.networks.mlp_module import MLP  # imports torch

        super().__init__()
        width = network.hidden[-1]
        action_width = (width + 1) // 2
        self.action = MLP(actions, action_width, dataclasses.replace(network, hidden=()))
        self.activation = getattr(nn.functional, network.activation)
        self.mlp = MLP(width + action_width, width, network)

    def forward(self, zs: Tensor, action: Tensor) -> Tensor:
        action_embedding = self.activation(self.action(action))
        embedding: Tensor = self.mlp(torch.cat([zs, action_embedding], -1))
        return embedding


class ScaledCritics(nn.Module):
    """MR.Q's two critics, which map embeddings zsa `[B, Z]` to action values `[2, B]`.

    They have one more hidden layer than `network`. They also return the reward scale `[1]`, a mean absolute reward,
    which is the unit of the action values. `seen` `[2]` has the sum of the mean absolute rewards of the batches since
    the last call of `rescale`, and the number of these batches.
    """

    scale: Tensor
    seen: Tensor

    def __init__(self, network: NetworkConfig) -> None:
        from drl_cli.networks.mlp_module import MLP  # imports torch

        super().__init__()
        width = network.hidden[-1]
        self.mlp = MLP(width, 1, dataclasses.replace(network, hidden=(*network.hidden, width)), ensemble=2)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("seen", torch.zeros(2))
        self.dropout_size, self.masks = self.mlp.dropout_size, self.mlp.masks

    def forward(self, zsa: Tensor, masks: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        return self.mlp(zsa, masks).squeeze(-1), self.scale

    def observe(self, mean_reward: Tensor) -> None:
        """Count the mean absolute reward of a batch, `[]`, for the next call of `rescale`."""
        self.seen[0] += mean_reward
        self.seen[1] += 1.0

    def rescale(self) -> None:
        """Set the reward scale to the mean absolute reward since the last call.

        The scale does not change if there was no batch or if all rewards were 0.
        """
        total, count = self.seen.unbind()
        self.scale.copy_(torch.where(total == 0, self.scale, total / count))  # 0 / 0 only if total is 0
        self.seen.zero_()
