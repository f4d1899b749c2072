"""Losses on distributions of the return, as pure functions of batched tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.losses.value import backed_up
from drl_cli.types import Array
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def project(probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor, rescale: float = 0) -> Tensor:
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


def cross_entropy(logits: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy `[B]` of probs and softmax(logits), `[B, K]` both; its derivative; the divergence KL `[B]`."""
    log_probs = logits.log_softmax(-1)
    loss = -(probs * log_probs).sum(-1)
    return loss, log_probs.exp() - probs, loss + torch.xlogy(probs, probs).sum(-1)


def quantile_huber(quantiles: Tensor, target: Tensor, fraction: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Quantile regression (QR-DQN, Dabney et al. 2018a, eq. 10): the loss `[B]` and its derivative `[B, K]`.

    quantiles `[B, K]` at the fractions `[K]` or `[B, K]`, target `[B, M]` samples or quantiles. With the error
    u = target_j - quantile_i the loss is sum_i mean_j |fraction_i - [u < 0]| huber_kappa(u) / kappa; kappa 0: |u|.
    """
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, K, M]
    side = (fraction.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    if kappa > 0:
        slope = error.clamp(-kappa, kappa)
        size, slope = slope * (error - 0.5 * slope) / kappa, slope / kappa
    else:
        size, slope = error.abs(), error.sign()
    return (side * size).mean(2).sum(1), -(side * slope).mean(2)


def midpoints(num: int) -> Array:
    """The middles of `num` equal parts of (0, 1), float32 `[num]`."""
    return (np.arange(num, dtype=np.float32) + np.float32(0.5)) / np.float32(num)


def risky_share(share: Array, risk: str, level: float) -> Array:
    """How much the worst `share` of all returns counts for a risk measure; as much as it is for the mean.

    cvar: nothing but the worst `level` of them counts (Rockafellar & Uryasev 2000). power: share^(1 + level), and
    1 - (1 - share)^(1 - level) of a negative level, which is averse to risk (Dabney et al. 2018, section 3.1).
    """
    if risk == "cvar":
        return np.minimum(share / np.float32(level), np.float32(1.0))
    if risk == "power":
        risky: Array = share ** (1.0 + level) if level >= 0 else 1.0 - (1.0 - share) ** (1.0 - level)
        return risky
    return share


def risky_fraction(fraction: Array, risk: str, level: float) -> Array:
    """The inverse of `risky_share`: a mean over quantiles at these instead of `fraction` is the risk measure."""
    if risk == "cvar":
        return fraction * np.float32(level)
    if risk == "power":
        power = 1.0 / (1.0 + abs(level))
        risky: Array = fraction**power if level >= 0 else 1.0 - (1.0 - fraction) ** power
        return risky
    return fraction


def softmax_numpy(logits: Any) -> Any:  # Any: arrays of any shape
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
