"""Samples of tanh-Gaussian policies, one-hot actions, and legal-action masks."""

import math
from typing import Any

import numpy as np

from drl_cli.utils.lazy import Tensor, torch

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # the bounds of log_std in SAC and its descendants
LOG_2PI = math.log(2 * math.pi)


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(u) `[B, A]`, where u = mean + exp(log_std) * noise, and their log-probabilities `[B]`.

    All arguments are `[B, A]`; `noise` is standard normal. The log-probability is that of u, minus the sum of
    log(1 - tanh(u)^2) over the A dimensions (SAC, Haarnoja et al. 2018, appendix C). This logarithm is computed as
    2 (log 2 - u - softplus(-2u)), because 1 - tanh(u)^2 rounds to 0 for large |u|.
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_prob = -0.5 * noise.square() - log_std - 2.0 * (-u - torch.nn.functional.softplus(-2.0 * u))
    # Each of the A dimensions has the same constant terms. They are subtracted together, after the sum.
    constant = (0.5 * LOG_2PI + 2.0 * math.log(2.0)) * u.shape[-1]
    return torch.tanh(u), log_prob.sum(-1) - constant


def one_hot(action: Tensor, size: int) -> Tensor:
    """Return discrete actions `[...]` as one-hot vectors, float32 `[..., size]`.

    This replaces torch's `one_hot`, which torch.compile of torch 2.11 cannot compile.
    """
    return (action.unsqueeze(-1) == torch.arange(size, device=action.device)).float()


FORBIDDEN = -1e9
"""The value or logit of an illegal action. It is finite, because 0 * -inf would be NaN."""


def permitted(values: Any, mask: Any) -> Any:  # Any: numpy or torch
    """Return values or logits `[B, A]`, with FORBIDDEN at the actions that a legal-action mask `[B, A]` forbids.

    `mask` is False for illegal actions. If `mask` is None, all actions are legal.
    """
    if mask is None:
        return values
    if isinstance(values, np.ndarray):
        return np.where(mask, values, np.float32(FORBIDDEN))
    return values.masked_fill(~mask, FORBIDDEN)
