"""Policy distributions and losses, as pure functions of batched tensors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.utils.lazy import Tensor, torch

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
LOG_2PI = math.log(2 * math.pi)


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions a = tanh(u) `[B, A]`, where u = mean + exp(log_std) * noise, and their log-probabilities `[B]`.

    All arguments are `[B, A]`. The log-probability needs log(1 - tanh(u)^2), which is computed as
    2 (log 2 - u - softplus(-2u)) to avoid underflow (SAC, Haarnoja et al. 2018, appendix C).
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_prob = -0.5 * noise.square() - log_std - 2.0 * (-u - torch.nn.functional.softplus(-2.0 * u))
    constant = (0.5 * LOG_2PI + 2.0 * math.log(2.0)) * u.shape[-1]
    return torch.tanh(u), log_prob.sum(-1) - constant


def tanh_gaussian_backward(
    action: Tensor, log_std: Tensor, noise: Tensor, d_action: Tensor, d_log_prob: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the loss with respect to `mean` and `log_std` of `tanh_gaussian`, `[B, A]` each.

    `d_action` `[B, A]` and `d_log_prob` `[B]` are the gradients of the loss with respect to the results of
    `tanh_gaussian`. The code uses d log_prob / du = 2 tanh(u).
    """
    d_u = d_action * (1.0 - action.square()) + d_log_prob.unsqueeze(-1) * (2.0 * action)
    return d_u, d_u * log_std.exp() * noise - d_log_prob.unsqueeze(-1)


FORBIDDEN = -1e9
"""Value or logit of an action that the legal-action mask forbids. 0 * FORBIDDEN is 0, but 0 * -inf would be NaN."""


def permitted(values: Any, mask: Any) -> Any:  # Any: numpy or torch
    """Return values or logits `[B, A]` with FORBIDDEN where the legal-action mask, bool `[B, A]` or None, is False."""
    if mask is None:
        return values
    if isinstance(values, np.ndarray):
        return np.where(mask, values, np.float32(FORBIDDEN))
    return values.masked_fill(~mask, FORBIDDEN)


def multi_categorical(logits: Tensor, action: Tensor, choices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the log-probability of `action` and the entropy, `[B]` each, for k independent choices.

    `logits` is `[B, sum(choices)]`, and `action` is int64 `[B, k]`. `choices` has the number of options of each choice.
    """
    parts = [
        categorical(one, a) for one, a in zip(torch.split(logits, list(choices), -1), action.unbind(-1), strict=True)
    ]
    return torch.stack([p for p, _ in parts]).sum(0), torch.stack([h for _, h in parts]).sum(0)


def multi_categorical_backward(
    logits: Tensor, action: Tensor, choices: Sequence[int], d_log_prob: Tensor, d_entropy: Tensor
) -> Tensor:
    """Return d loss/d logits `[B, sum(choices)]`, given d loss/d log_prob and d loss/d entropy, `[B]` each."""
    parts = zip(torch.split(logits, list(choices), -1), action.unbind(-1), strict=True)
    return torch.cat([categorical_backward(one, a, d_log_prob, d_entropy) for one, a in parts], -1)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of `action` (int64 `[B]`) and the entropy, `[B]` each, given logits `[B, A]`."""
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy


def categorical_backward(logits: Tensor, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor) -> Tensor:
    """Return d loss/d logits `[B, A]` for `categorical`.

    `d_log_prob` and `d_entropy` `[B]` are the gradients of the loss with respect to the results of `categorical`. The
    code uses d log p_a / d logit_j = [j = a] - p_j, and dH / d logit_j = -p_j (log p_j + H).
    """
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(-1, keepdim=True)
    d_logits = -probs * (d_log_prob.unsqueeze(-1) + d_entropy.unsqueeze(-1) * (log_probs + entropy))
    return d_logits.scatter_add_(-1, action.unsqueeze(-1), d_log_prob.unsqueeze(-1))


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of `action` and the entropy, `[B]` each, of N(mean, exp(log_std)^2).

    `mean` and `action` are `[B, A]`; `log_std` is `[A]` (the same in all states) or `[B, A]`.
    """
    log_std = log_std.expand_as(mean)
    z = (action - mean) * (-log_std).exp()
    log_prob = (-0.5 * z.square() - log_std - 0.5 * LOG_2PI).sum(-1)
    return log_prob, (log_std + 0.5 + 0.5 * LOG_2PI).sum(-1)


def gaussian_backward(
    mean: Tensor, log_std: Tensor, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the loss with respect to `mean` and `log_std` of `gaussian`, `[B, A]` each.

    If `log_std` is `[A]`, the caller has to sum the second gradient over B. With z = (a - mean) / std, the code uses
    d log p / d mean = z / std, d log p / d log_std = z^2 - 1, and dH / d log_std = 1.
    """
    inverse_std = (-log_std).exp()
    z = (action - mean) * inverse_std
    d_log_prob = d_log_prob.unsqueeze(-1)
    return d_log_prob * z * inverse_std, d_log_prob * (z.square() - 1.0) + d_entropy.unsqueeze(-1)


def squashed_gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `gaussian` returns for a = tanh(u), where u is Gaussian; `action` `[B, A]` is in [-1, 1].

    The log-density of a is that of u, minus sum log(1 - a^2). The entropy of a has no formula. The returned entropy is
    that of u, plus sum log(1 - a^2) of the row's action, whose mean is the entropy if the actions are of this policy.
    """
    u, log_slope = _unsquashed(action)
    log_prob, entropy = gaussian(mean, log_std, u)
    return log_prob - log_slope, entropy + log_slope


def squashed_gaussian_backward(
    mean: Tensor, log_std: Tensor, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients for `squashed_gaussian`, as `gaussian_backward` does.

    For the entropy, u is written as mean + std z with a fixed z: d log(1 - tanh(u)^2) / du = -2 tanh(u).
    """
    u, _ = _unsquashed(action)
    d_mean, d_log_std = gaussian_backward(mean, log_std, u, d_log_prob, d_entropy)
    d_u = -2.0 * action * d_entropy.unsqueeze(-1)
    return d_mean + d_u, d_log_std + d_u * (u - mean)


def _unsquashed(action: Tensor) -> tuple[Tensor, Tensor]:
    """Return u with action = tanh(u), and sum log(1 - tanh(u)^2) `[B]`; an action of 1 counts as a number below 1."""
    most = 1.0 - 2.0**-24  # the largest float32 below 1
    u = action.clamp(-most, most).atanh()
    log_slope = 2.0 * (math.log(2.0) - u.abs() - (-2.0 * u.abs()).exp().log1p())
    return u, log_slope.sum(-1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return PPO's loss -E[min(r A, clip(r, 1 - clip, 1 + clip) A)] and d loss/d ratio `[B]`.

    The ratio r = pi(a|s) / pi_old(a|s) and the advantage A are `[B]`; pi_old is the policy that chose the action. The
    gradient is 0 in rows where the clipped term is smaller (Schulman et al. 2017, eq. 7).
    """
    surrogate, clipped = ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage
    d_ratio = torch.where(surrogate <= clipped, advantage, 0.0) / -len(ratio)
    return -torch.minimum(surrogate, clipped).mean(), d_ratio


def multi_categorical_kl(old: Tensor, logits: Tensor, choices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return KL(old || new) `[B]` of k independent choices, and its derivative with respect to `logits`.

    `old` and `logits` are `[B, sum(choices)]`. The code uses d KL / d logits = p_new - p_old.
    """
    kls, slopes = [], []
    for one, other in zip(torch.split(old, list(choices), -1), torch.split(logits, list(choices), -1), strict=True):
        before, now = one.log_softmax(-1), other.log_softmax(-1)
        kls.append((before.exp() * (before - now)).sum(-1))
        slopes.append(now.exp() - before.exp())
    return torch.stack(kls).sum(0), torch.cat(slopes, -1)


def gaussian_kl(
    old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return KL(old || new) of Gaussians in two parts, each with its derivative: of the mean, and of the deviation.

    The arguments are `[B, A]`. The first part is the divergence if only the mean changes, sum (mean - old_mean)^2 /
    (2 old_std^2), with its derivative `[B, A]` with respect to `mean`. The second part is the divergence if only the
    deviation changes, sum log(std / old_std) + (old_std / std)^2 / 2 - 1/2, with its derivative with respect to
    `log_std` (Abdolmaleki et al. 2018, arXiv 1812.02256, section 4.2; V-MPO, arXiv 1909.12238, appendix B).
    """
    inverse_variance, ratio = (-2.0 * old_log_std).exp(), (2.0 * (old_log_std - log_std)).exp()
    by_mean = 0.5 * (mean - old_mean).square() * inverse_variance
    by_std = log_std - old_log_std + 0.5 * (ratio - 1.0)
    return (by_mean.sum(-1), (mean - old_mean) * inverse_variance), (by_std.sum(-1), 1.0 - ratio)
