"""Policy distributions and losses, as pure functions of batched tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
LOG_2PI = math.log(2 * math.pi)


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample `a = tanh(u), u = mean + exp(log_std) * noise` and its log-probability.

    All inputs `[B, A]`; returns action `[B, A]` and log-probability `[B]`. The tanh correction is written as
    2 (log 2 - u - softplus(-2u)), which stays exact where log(1 - tanh(u)^2) underflows
    (SAC, Haarnoja et al. 2018, appendix C, in its stable form).
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_prob = -0.5 * noise.square() - log_std - 2.0 * (-u - torch.nn.functional.softplus(-2.0 * u))
    constant = (0.5 * LOG_2PI + 2.0 * math.log(2.0)) * u.shape[-1]
    return torch.tanh(u), log_prob.sum(-1) - constant


def tanh_gaussian_backward(
    action: Tensor, log_std: Tensor, noise: Tensor, d_action: Tensor, d_log_prob: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of `tanh_gaussian` with respect to mean and log_std, `[B, A]` each.

    d_action `[B, A]` and d_log_prob `[B]` are those of the loss; d log_prob / du = 2 tanh(u).
    """
    d_u = d_action * (1.0 - action.square()) + d_log_prob.unsqueeze(-1) * (2.0 * action)
    return d_u, d_u * log_std.exp() * noise - d_log_prob.unsqueeze(-1)


def soft_policy_loss(
    q: Tensor, log_prob: Tensor, alpha: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """SAC actor loss, E[alpha log pi(a|s) - min_i Q_i(s, a)] (eq. 7), and its gradients.

    q `[N, B]`, log_prob `[B]`, weight `[B]` of each row in the mean over B; returns the loss, d loss/d q `[N, B]` and
    d loss/d log_prob `[B]`.
    """
    least, critic = q.min(0)
    loss, share = alpha * log_prob - least, torch.full_like(log_prob, 1.0 / q.shape[1])
    if weight is not None:
        loss, share = weight * loss, weight * share
    d_q = torch.zeros_like(q).scatter_(0, critic.unsqueeze(0), -share.unsqueeze(0))
    return loss.mean(), d_q, alpha * share


def expected_soft_policy_loss(
    log_probs: Tensor, q: Tensor, alpha: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Discrete SAC's actor loss E[sum_a pi(a|s) (alpha log pi(a|s) - q(s, a))] (Christodoulou 2019, eq. 12).

    log_probs = log softmax(logits) and q `[B, A]`, weight `[B]` as for `soft_policy_loss`. Returns the loss, d loss/d
    logits `[B, A]`, which is pi_j (alpha log pi_j - q_j - their mean under pi), and the entropy `[B]`.
    """
    probs, cost = log_probs.exp(), alpha * log_probs - q
    mean = (probs * cost).sum(-1)
    share = torch.full_like(mean, 1.0 / len(mean)) if weight is None else weight / len(mean)
    d_logits = share.unsqueeze(-1) * probs * (cost - mean.unsqueeze(-1))
    return (share * mean).sum(), d_logits, -(probs * log_probs).sum(-1)


def temperature_gradient(log_prob: Tensor, target_entropy: float, weight: Tensor | None = None) -> Tensor:
    """d/d log_alpha of the temperature loss E[-log_alpha (log pi + target entropy)] (eq. 18).

    log_prob `[B]`, weight `[B]` as for `soft_policy_loss`, of mean 1.
    """
    return -((log_prob if weight is None else weight * log_prob).mean() + target_entropy)


FORBIDDEN = -1e9
"""In place of the value or logit of an action that a mask does not allow: finite, so that 0 times it is 0."""


def permitted(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values or logits `[B, A]`, FORBIDDEN where the mask, bool `[B, A]`, says that the action is not allowed."""
    return values if mask is None else values.masked_fill(~mask, FORBIDDEN)


def multi_categorical(logits: Tensor, action: Tensor, choices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`categorical` of several independent choices: logits `[B, sum(choices)]`, action int64 `[B, k]`."""
    parts = [
        categorical(one, a) for one, a in zip(torch.split(logits, list(choices), -1), action.unbind(-1), strict=True)
    ]
    return torch.stack([p for p, _ in parts]).sum(0), torch.stack([h for _, h in parts]).sum(0)


def multi_categorical_backward(
    logits: Tensor, action: Tensor, choices: Sequence[int], d_log_prob: Tensor, d_entropy: Tensor
) -> Tensor:
    """Gradient of `multi_categorical` with respect to the logits `[B, sum(choices)]`."""
    parts = zip(torch.split(logits, list(choices), -1), action.unbind(-1), strict=True)
    return torch.cat([categorical_backward(one, a, d_log_prob, d_entropy) for one, a in parts], -1)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of `action` (int64 `[B]`) and entropy, `[B]` each, of softmax(logits `[B, A]`)."""
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy


def categorical_backward(logits: Tensor, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor) -> Tensor:
    """Gradient of `categorical` with respect to the logits `[B, A]`, given the loss's d_log_prob, d_entropy `[B]`.

    d log p_a / d logit_j = [j = a] - p_j, and dH / d logit_j = -p_j (log p_j + H).
    """
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(-1, keepdim=True)
    d_logits = -probs * (d_log_prob.unsqueeze(-1) + d_entropy.unsqueeze(-1) * (log_probs + entropy))
    return d_logits.scatter_add_(-1, action.unsqueeze(-1), d_log_prob.unsqueeze(-1))


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of `action` and entropy, `[B]` each, of N(mean, exp(log_std)^2); mean, action `[B, A]`.

    log_std is `[A]` (one for all states) or `[B, A]`.
    """
    log_std = log_std.expand_as(mean)
    z = (action - mean) * (-log_std).exp()
    log_prob = (-0.5 * z.square() - log_std - 0.5 * LOG_2PI).sum(-1)
    return log_prob, (log_std + 0.5 + 0.5 * LOG_2PI).sum(-1)


def gaussian_backward(
    mean: Tensor, log_std: Tensor, action: Tensor, d_log_prob: Tensor, d_entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of `gaussian` with respect to mean and log_std, `[B, A]` each; where log_std is `[A]`, sum its over B.

    With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log_std = z^2 - 1, dH / d log_std = 1.
    """
    inverse_std = (-log_std).exp()
    z = (action - mean) * inverse_std
    d_log_prob = d_log_prob.unsqueeze(-1)
    return d_log_prob * z * inverse_std, d_log_prob * (z.square() - 1.0) + d_entropy.unsqueeze(-1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's loss -E[min(r A, clip(r, 1 - clip, 1 + clip) A)] (Schulman et al. 2017, eq. 7) and d loss/d ratio `[B]`.

    ratio and advantage `[B]`; r = pi(a|s) over the probability at which the action was taken. No gradient flows where
    the clipped term is the smaller one.
    """
    surrogate, clipped = ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage
    d_ratio = torch.where(surrogate <= clipped, advantage, 0.0) / -len(ratio)
    return -torch.minimum(surrogate, clipped).mean(), d_ratio
