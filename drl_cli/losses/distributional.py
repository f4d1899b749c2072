"""Losses for distributions of the return, as pure functions of batched tensors."""

from typing import Any

import numpy as np

from drl_cli.losses.value import backed_up
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch


def project(probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor, rescale: float = 0) -> Tensor:
    """Return C51's target: the distribution of reward + discount * z, as probabilities of the support, `[B, K]`.

    z has the values `support` `[K]`, which are equally spaced, with the probabilities `probs` `[B, K]`. `reward` and
    `discount` are `[B]`. If reward + discount * z lies between two values of the support, linear interpolation divides
    its probability between them. If it lies outside the support, the nearest end gets its probability (Bellemare et al.
    2017, eq. 7). A reward that is not finite gives a row of NaN. With `rescale` > 0, the support has rescaled values
    (see `backed_up`).
    """
    least, most, last = support[0], support[-1], len(support) - 1
    target = backed_up(reward.unsqueeze(-1), discount.unsqueeze(-1), support, rescale)
    finite_target = target.nan_to_num()  # because NaN has no position; the last line makes these rows NaN again
    # The target as a position in the support: 2.25 lies between the values with the indices 2 and 3.
    position = ((finite_target - least) * (last / (most - least))).clamp(0.0, last)
    lower = position.floor().clamp(max=last - 1)  # so that the index lower + 1 exists
    upper_share = position - lower
    lower_index = lower.long()
    projected = torch.zeros_like(probs)
    projected.scatter_add_(-1, lower_index, probs * (1.0 - upper_share))
    projected.scatter_add_(-1, lower_index + 1, probs * upper_share)
    return projected + 0.0 * reward.unsqueeze(-1)  # adds 0, or NaN if the reward is not finite


def project_numpy(probs: Array, reward: Array, discount: Array, support: Array, rescale: float = 0) -> Array:
    """Return what `project` returns for the same arguments, computed with numpy: `[B, K]`."""
    gap = (support[-1] - support[0]) / (len(support) - 1)
    target = backed_up(reward[:, None], discount[:, None], support, rescale)
    clipped = np.clip(target, support[0], support[-1])
    distance = np.abs(clipped[:, :, None] - support) / gap  # 1 for neighbours on the support, [B, K targets, K values]
    shares = np.clip(1.0 - distance, 0.0, 1.0)  # linear interpolation: 0 except for a target's two neighbours
    projected: Array = (probs[:, :, None] * shares).sum(1)
    projected[~np.isfinite(reward)] = np.nan
    return projected


def hl_gauss(target: Tensor, support: Tensor, width: float = 0.75) -> Tensor:
    """Return a normal distribution around each target, as probabilities of the support's values: `[B, K]`.

    `target` `[B]` is clipped to the range of `support`, which has K equally spaced values. The standard deviation is
    `width` times the gap between two neighbouring values (HL-Gauss, Farebrother et al. 2024, arXiv 2403.03950,
    section 3.1). Each value gets the normal distribution's probability of the interval from half a gap below the value
    to half a gap above. The probabilities are then divided by their sum. A target that is not finite gives a row of
    NaN.
    """
    gap = support[1] - support[0]
    edges = torch.cat([support[:1] - 0.5 * gap, support + 0.5 * gap])  # the ends of the intervals, [K + 1]
    clipped = target.clamp(support[0], support[-1])
    mean = torch.where(target.isfinite(), clipped, torch.nan).unsqueeze(-1)
    cumulative: Tensor = torch.special.ndtr((edges - mean) / (width * gap))  # below each edge, [B, K + 1]
    probs = cumulative.diff(dim=-1)  # of the intervals, [B, K]
    total = cumulative[:, -1:] - cumulative[:, :1]  # the sum of `probs`
    return probs / total


def cross_entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """Return the cross-entropy `[B]` between `probs` and softmax(logits). Both arguments are `[B, K]`.

    Each row of `probs` must sum to 1.
    """
    return -(probs * logits.log_softmax(-1)).sum(-1)


def divergence(logits: Tensor, probs: Tensor) -> Tensor:
    """Return KL(probs || softmax(logits)) `[B]`, at least 0. The arguments are those of `cross_entropy`."""
    difference = cross_entropy(logits, probs) + torch.xlogy(probs, probs).sum(-1)  # minus the entropy; 0 log 0 is 0
    return difference.clamp(min=0.0)  # rounding can make a divergence negative


def two_hot_loss(logits: Tensor, value: Tensor, bins: Tensor) -> Tensor:
    """Return the cross-entropy between the two-hot vector of each value and softmax(logits), `[...]`.

    `value` is `[...]`, `logits` is `[..., K]`, and `bins` `[K]` is strictly increasing. A two-hot vector divides the
    probability 1 between the two bins next to the value, by linear interpolation (MuZero, Schrittwieser et al. 2020,
    appendix F). Values outside the range of the bins are clipped.
    """
    return two_hot_error(logits.log_softmax(-1), value, bins)


def two_hot_error(log_probs: Tensor, value: Tensor, bins: Tensor) -> Tensor:
    """Return what `two_hot_loss` returns, given the log-probabilities `[..., K]` instead of logits."""
    first_larger = torch.bucketize(value.contiguous(), bins, right=True)  # contiguous is faster
    upper = first_larger.clamp(1, len(bins) - 1)  # so that both neighbours exist
    lower = upper - 1
    upper_share = ((value - bins[lower]) / (bins[upper] - bins[lower])).clamp(0.0, 1.0)
    neighbours = log_probs.gather(-1, torch.stack([lower, upper], -1))  # [..., 2]
    return -((1.0 - upper_share) * neighbours[..., 0] + upper_share * neighbours[..., 1])


def quantile_huber(quantiles: Tensor, target: Tensor, fraction: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Return the quantile regression loss `[B]`, and its derivative with respect to `quantiles`, `[B, K]`.

    `quantiles` `[B, K]` has K estimated quantiles of the return. `fraction`, `[K]` or `[B, K]`, has their fractions.
    `target` `[B, M]` has samples or quantiles of the return. With u = target_j - quantiles_i, the loss of a row is

        sum_i mean_j |fraction_i - [u < 0]| huber_kappa(u) / kappa

    With kappa = 0, |u| replaces huber_kappa(u) / kappa. The division by kappa is IQN's (Dabney et al. 2018b, arXiv
    1806.06923, eq. 3). QR-DQN's loss (Dabney et al. 2018a, arXiv 1710.10044, eq. 10) has none.
    """
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, K, M]
    is_negative = (error < 0).to(error.dtype)  # 1 or 0
    factor = (fraction.unsqueeze(-1) - is_negative).abs()
    if kappa > 0:
        clipped = error.clamp(-kappa, kappa)
        loss = clipped * (error - 0.5 * clipped) / kappa  # huber_kappa(error) / kappa
        slope = clipped / kappa
    else:
        loss, slope = error.abs(), error.sign()
    row_loss = (factor * loss).mean(2).sum(1)
    return row_loss, -(factor * slope).mean(2)  # negative, because the error contains -quantiles


def midpoints(num: int) -> Array:
    """Split (0, 1) into `num` equal intervals and return their midpoints, float32 `[num]`."""
    return (np.arange(num, dtype=np.float32) + np.float32(0.5)) / np.float32(num)


def distorted_cumulative(cumulative: Any, risk: str, level: float) -> Any:  # Any: numpy or torch
    """Return the weights that a risk measure gives to the worst returns, in the shape of `cumulative`.

    For each c in `cumulative`, the result is the total weight of the worst returns whose total probability is c.
    `risk` names the risk measure:

    - `mean`: The weight is c.
    - `cvar`: The weight is min(c / level, 1), so only the worst fraction `level` of the returns counts (Rockafellar &
      Uryasev 2000).
    - `power`: If level >= 0, the weight is c^(1 + level), which prefers risk. If level < 0, the weight is
      1 - (1 - c)^(1 - level), which avoids risk (IQN, Dabney et al. 2018b, arXiv 1806.06923, section 3.1).
    """
    if risk == "cvar":
        return (cumulative / np.float32(level)).clip(max=1.0)
    if risk == "power":
        return cumulative ** (1.0 + level) if level >= 0 else 1.0 - (1.0 - cumulative) ** (1.0 - level)
    return cumulative


def distorted_fraction(fraction: Array, risk: str, level: float) -> Array:
    """Return quantile fractions, in the shape of `fraction`: the mean of their quantiles approximates a risk measure.

    `fraction` has evenly spaced numbers in (0, 1). The function is the inverse of `distorted_cumulative` with the same
    `risk` and `level` (IQN, section 3.1). For example, cvar with the level 0.1 maps (0, 1) to (0, 0.1).
    """
    if risk == "cvar":
        return fraction * np.float32(level)
    if risk == "power":
        power = 1.0 / (1.0 + abs(level))
        distorted: Array = fraction**power if level >= 0 else 1.0 - (1.0 - fraction) ** power
        return distorted
    return fraction


def softmax(logits: Any) -> Any:  # Any: numpy or torch
    """Return the softmax over the last axis, in the shape of `logits`."""
    if not isinstance(logits, np.ndarray):
        return logits.softmax(-1)
    powers = np.exp(logits - logits.max(-1, keepdims=True))  # the difference avoids an overflow
    return powers / powers.sum(-1, keepdims=True)
