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


def tanh_gaussian_backward(
    action: "torch.Tensor",
    log_std: "torch.Tensor",
    noise: "torch.Tensor",
    d_action: "torch.Tensor",
    d_log_prob: "torch.Tensor",
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Gradients of `tanh_gaussian` with respect to mean and log_std, `[B, A]` each.

    d_action `[B, A]` and d_log_prob `[B]` are those of the loss; d log_prob / du = 2 tanh(u).
    """
    d_u = d_action * (1.0 - action.square()) + d_log_prob.unsqueeze(-1) * (2.0 * action)
    return d_u, d_u * log_std.exp() * noise - d_log_prob.unsqueeze(-1)


def soft_policy_loss(
    q: "torch.Tensor", log_prob: "torch.Tensor", alpha: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """SAC actor loss, E[alpha log pi(a|s) - min_i Q_i(s, a)] (eq. 7), and its gradients.

    q `[N, B]`, log_prob `[B]`; returns the loss, d loss/d q `[N, B]` and d loss/d log_prob `[B]`.
    """
    least, critic = q.min(0)
    d_q = torch.zeros_like(q).scatter_(0, critic.unsqueeze(0), -1.0 / q.shape[1])
    return (alpha * log_prob - least).mean(), d_q, (alpha / q.shape[1]).expand_as(log_prob)


def temperature_gradient(log_prob: "torch.Tensor", target_entropy: float) -> "torch.Tensor":
    """d/d log_alpha of the temperature loss E[-log_alpha (log pi + target entropy)] (eq. 18); log_prob `[B]`."""
    return -(log_prob.mean() + target_entropy)
