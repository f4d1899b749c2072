"""Losses on distributions of the return, as pure functions of batched tensors."""

from typing import Any

import numpy as np

from drl_cli.losses.value import backed_up
from drl_cli.types import Array
from drl_cli.utils.lazy import torch


def project(
    probs: "torch.Tensor", reward: "torch.Tensor", discount: "torch.Tensor", support: "torch.Tensor", rescale: float = 0
) -> "torch.Tensor":
    """The distribution of reward + discount * z, put on the support itself, `[B, K]` (Bellemare et al. 2017, eq. 7).

    probs `[B, K]` of the values z of the support, `[K]`, equally far apart; reward, discount `[B]`. What falls between
    two of them is shared in proportion to its nearness, what falls outside goes to the end: the mass stays 1.
    With `rescale` the support is of rescaled values, as in `backed_up`.
    """
    least, most, last = support[0], support[-1], len(support) - 1
    shifted = backed_up(reward.unsqueeze(-1), discount.unsqueeze(-1), support, rescale)
    place = ((shifted.nan_to_num() - least) * (last / (most - least))).clamp(0.0, last)
    below = place.floor().clamp(max=last - 1)
    above_share = place - below
    index = below.long()
    out = torch.zeros_like(probs).scatter_add_(-1, index, probs * (1.0 - above_share))
    return out.scatter_add_(-1, index + 1, probs * above_share)


def project_numpy(probs: Array, reward: Array, discount: Array, support: Array, rescale: float = 0) -> Array:
    """`project` where a policy acts."""
    gap = (support[-1] - support[0]) / (len(support) - 1)
    shifted = np.clip(backed_up(reward[:, None], discount[:, None], support, rescale), support[0], support[-1])
    shares = np.clip(1.0 - np.abs(shifted[:, :, None] - support) / gap, 0.0, 1.0)  # [B, K, K]: of each value on each
    projected: Array = (probs[:, :, None] * shares).sum(1)
    return projected


def cross_entropy(logits: "torch.Tensor", probs: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Cross-entropy `[B]` of probs and softmax(logits), `[B, K]` both; its derivative; the divergence KL `[B]`."""
    log_probs = logits.log_softmax(-1)
    loss = -(probs * log_probs).sum(-1)
    return loss, log_probs.exp() - probs, loss + torch.xlogy(probs, probs).sum(-1)


def softmax_numpy(logits: Any) -> Any:  # Any: arrays of any shape
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
