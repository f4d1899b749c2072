"""Losses for distributions of the return, as pure functions of batched tensors."""

from typing import Any

import numpy as np

from drl_cli.losses.value import backed_up
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch


def project(probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor, rescale: float = 0) -> Tensor:
    """Return the distribution of reward + discount * z, projected onto the support: `[B, K]`.

    `probs` `[B, K]` are the probabilities of the support's equally spaced values z `[K]`; `reward` and `discount` are
    `[B]`. If reward + discount * z lies between two values of the support, linear interpolation divides its probability
    between them. If it lies outside the support, its probability goes to the nearest end (Bellemare et al. 2017, eq.
    7). A reward that is not finite gives a row of NaN, so that the update can be skipped. See `backed_up` for
    `rescale`.
    """
    least, most, last = support[0], support[-1], len(support) - 1
    shifted = backed_up(reward.unsqueeze(-1), discount.unsqueeze(-1), support, rescale)
    place = ((shifted.nan_to_num() - least) * (last / (most - least))).clamp(0.0, last)
    below = place.floor().clamp(max=last - 1)
    above_share = place - below
    index = below.long()
    out = torch.zeros_like(probs).scatter_add_(-1, index, probs * (1.0 - above_share))
    out.scatter_add_(-1, index + 1, probs * above_share)
    return out + 0.0 * reward.unsqueeze(-1)  # adds 0, or NaN if the reward is not finite


def project_numpy(probs: Array, reward: Array, discount: Array, support: Array, rescale: float = 0) -> Array:
    """Compute the same as `project` in numpy, for policies."""
    gap = (support[-1] - support[0]) / (len(support) - 1)
    shifted = np.clip(backed_up(reward[:, None], discount[:, None], support, rescale), support[0], support[-1])
    shares = np.clip(1.0 - np.abs(shifted[:, :, None] - support) / gap, 0.0, 1.0)  # [B, K, K]
    projected: Array = (probs[:, :, None] * shares).sum(1)
    projected[~np.isfinite(reward)] = np.nan
    return projected


def hl_gauss(target: Tensor, support: Tensor, width: float = 0.75) -> Tensor:
    """Return a normal distribution around each target, as probabilities of the support's values: `[B, K]`.

    `target` `[B]` is clipped to the range of the support, `[K]` equally spaced values. The standard deviation is
    `width` times the distance between two neighbouring values (HL-Gauss, Farebrother et al. 2024, arXiv 2403.03950,
    section 3.1). Each value gets the probability of the interval around it, divided by the sum over all intervals. A
    target that is not finite gives NaN, so that the update can be skipped.
    """
    gap = support[1] - support[0]
    edges = torch.cat([support[:1] - 0.5 * gap, support + 0.5 * gap])
    place = torch.where(target.isfinite(), target.clamp(support[0], support[-1]), torch.nan).unsqueeze(-1)
    below = torch.special.ndtr((edges - place) / (width * gap))
    probs: Tensor = below.diff(dim=-1) / (below[:, -1:] - below[:, :1])
    return probs


def cross_entropy(logits: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cross-entropy `[B]` of `probs` and softmax(logits), its gradient `[B, K]`, and KL divergence `[B]`.

    Both arguments are `[B, K]`. The gradient is with respect to the logits. The divergence is KL(probs || softmax).
    """
    log_probs = logits.log_softmax(-1)
    loss = -(probs * log_probs).sum(-1)
    return loss, log_probs.exp() - probs, loss + torch.xlogy(probs, probs).sum(-1)


def two_hot_loss(logits: Tensor, value: Tensor, bins: Tensor) -> Tensor:
    """Return the cross-entropy `[...]` of logits `[..., K]` and the two-hot vectors of values `[...]`.

    A two-hot vector has probabilities only at the two neighbours of the value among `bins` `[K]`, by linear
    interpolation (MuZero, Schrittwieser et al. 2020, appendix F). `bins` is sorted; values beyond its ends are clipped.
    """
    lower = (torch.bucketize(value.contiguous(), bins, right=True) - 1).clamp(0, len(bins) - 2)
    share = ((value - bins[lower]) / (bins[lower + 1] - bins[lower])).clamp(0.0, 1.0)
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, torch.stack([lower, lower + 1], -1))
    return -((1.0 - share) * chosen[..., 0] + share * chosen[..., 1])


def quantile_huber(quantiles: Tensor, target: Tensor, fraction: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Return the quantile regression loss `[B]` and its derivative `[B, K]` (QR-DQN, Dabney et al. 2018a, eq. 10).

    `quantiles` `[B, K]` are estimates at `fraction` `[K]` or `[B, K]`. `target` `[B, M]` has samples or quantiles.
    With the error u = target_j - quantile_i, the loss is sum_i mean_j |fraction_i - [u < 0]| huber_kappa(u) / kappa.
    With kappa = 0, |u| replaces huber_kappa(u) / kappa.
    """
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, K, M]
    factor = (fraction.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    if kappa > 0:
        clipped = error.clamp(-kappa, kappa)
        loss, slope = clipped * (error - 0.5 * clipped) / kappa, clipped / kappa
    else:
        loss, slope = error.abs(), error.sign()
    return (factor * loss).mean(2).sum(1), -(factor * slope).mean(2)


def midpoints(num: int) -> Array:
    """Split (0, 1) into `num` equal intervals and return their midpoints, float32 `[num]`."""
    return (np.arange(num, dtype=np.float32) + np.float32(0.5)) / np.float32(num)


def risky_share(share: Array, risk: str, level: float) -> Array:
    """Return the weight, in [0, 1], that a risk measure gives to the worst returns, `share` in [0, 1] of all returns.

    - `mean`: The weight is `share`.
    - `cvar`: The weight is min(share / level, 1), so only the worst fraction `level` of the returns counts (Rockafellar
      & Uryasev 2000).
    - `power`: If level >= 0, the weight is share^(1 + level), which prefers risk. If level < 0, the weight is
      1 - (1 - share)^(1 - level), which avoids risk (Dabney et al. 2018, section 3.1).
    """
    if risk == "cvar":
        return np.minimum(share / np.float32(level), np.float32(1.0))
    if risk == "power":
        risky: Array = share ** (1.0 + level) if level >= 0 else 1.0 - (1.0 - share) ** (1.0 - level)
        return risky
    return share


def risky_fraction(fraction: Array, risk: str, level: float) -> Array:
    """Return the inverse function of `risky_share`, applied to `fraction`.

    The mean of the quantiles at the returned fractions approximates the risk measure if `fraction` is evenly spaced.
    """
    if risk == "cvar":
        return fraction * np.float32(level)
    if risk == "power":
        power = 1.0 / (1.0 + abs(level))
        risky: Array = fraction**power if level >= 0 else 1.0 - (1.0 - fraction) ** power
        return risky
    return fraction


def softmax_numpy(logits: Any) -> Any:  # Any: arrays of any shape
    """Return the softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
