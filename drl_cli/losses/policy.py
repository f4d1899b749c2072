"""Policy distributions and losses, as pure functions of batched tensors."""

import math

from drl_cli.utils.lazy import torch

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


def tanh_gaussian(
    mean: "torch.Tensor", log_std: "torch.Tensor", noise: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Sample `a = tanh(u), u = mean + exp(log_std) * noise` and its log-probability.

    All inputs `[B, A]`; returns action `[B, A]` and log-probability `[B]`. The tanh correction is written as
    2 (log 2 - u - softplus(-2u)), which stays exact where log(1 - tanh(u)^2) underflows
    (SAC, Haarnoja et al. 2018, appendix C, in its stable form).
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_prob = -0.5 * noise.square() - log_std - 2.0 * (-u - torch.nn.functional.softplus(-2.0 * u))
    constant = (0.5 * math.log(2 * math.pi) + 2.0 * math.log(2.0)) * u.shape[-1]
    return torch.tanh(u), log_prob.sum(-1) - constant


def soft_policy_loss(q: "torch.Tensor", log_prob: "torch.Tensor", alpha: "torch.Tensor") -> "torch.Tensor":
    """SAC actor loss, E[alpha log pi(a|s) - min_i Q_i(s, a)]; q `[N, B]`, log_prob `[B]` (eq. 7)."""
    return (alpha * log_prob - q.min(0).values).mean()


def temperature_loss(
    log_alpha: "torch.Tensor", log_prob: "torch.Tensor", target_entropy: float
) -> "torch.Tensor":
    """Temperature loss, E[-log_alpha (log pi + target entropy)]; log_prob `[B]` is taken as a constant (eq. 18)."""
    return -(log_alpha * (log_prob.detach() + target_entropy)).mean()
