"""Value targets and losses, as pure functions of batched tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Soft Bellman target r + discount (min_i Q_i(s', a') - alpha log pi(a'|s')), `[B]`.

    reward, discount, next_log_prob `[B]`, next_q `[N, B]`. `discount` is gamma**k over k steps and 0 only where the
    episode terminated, so a truncated episode bootstraps (SAC, Haarnoja et al. 2018, eq. 3 and 5).
    """
    return reward + discount * (next_q.min(0).values - alpha * next_log_prob)


def expected_soft_target(
    reward: Tensor, discount: Tensor, next_q: Tensor, next_log_probs: Tensor, alpha: Tensor
) -> Tensor:
    """`soft_target` with its expectation over discrete actions, `[B]` (Christodoulou 2019, arXiv 1910.07207, eq. 10).

    reward, discount `[B]`, next_q `[N, B, A]`, next_log_probs `[B, A]`.
    """
    soft = next_q.min(0).values - alpha * next_log_probs
    return reward + discount * (next_log_probs.exp() * soft).sum(-1)


def ensemble_mse(q: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum over the N critics of the mean squared error, and its gradient; q `[N, B]`, target and weight `[B]`.

    `weight` multiplies each row's squared error (prioritized replay, Schaul et al. 2015, algorithm 1); the mean is
    still over B rows.
    """
    error = q - target
    weighted = error if weight is None else weight * error
    return (weighted * error).sum() / q.shape[1], weighted * (2.0 / q.shape[1])


def softmax_policy(q: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Probabilities `[B, A]` and entropy `[B]` of softmax(q / temperature), q `[B, A]`.

    The soft value of a state is sum_a pi(a) q(a) + temperature * entropy; where q is what makes the policy, that is
    temperature * logsumexp(q / temperature) (Haarnoja et al. 2017, eq. 3).
    """
    log_probs = (q / temperature).log_softmax(-1)
    probs = log_probs.exp()
    return probs, -(probs * log_probs).sum(-1)


def scaled_log_policy(q: Tensor, action: Tensor, temperature: float, floor: float) -> Tensor:
    """Munchausen's reward, temperature * log pi(a|s) within [floor, 0], `[B]` (Vieillard et al. 2020, section 2).

    pi = softmax(q / temperature), q `[B, A]`, action int64 `[B]`.
    """
    log_probs = (q / temperature).log_softmax(-1)
    return (temperature * log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)).clamp(floor, 0.0)


def half_square(error: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared error and its derivative, both of the error's shape."""
    return 0.5 * error.square(), error


def huber(error: Tensor) -> tuple[Tensor, Tensor]:
    """Huber loss and its derivative, both of the error's shape: e^2 / 2 within [-1, 1], |e| - 1/2 outside.

    Its derivative is the error clipped to [-1, 1] (Mnih et al. 2015, methods).
    """
    slope = error.clamp(-1.0, 1.0)
    return torch.sub(error, slope, alpha=0.5).mul_(slope), slope


def rescaled(x: Any, eps: float) -> Any:  # Any: numpy or torch
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, of any shape (Pohlen et al. 2018, arXiv 1805.11593, proposition A.2).

    Returns of any size become targets of moderate size without being clipped. Written without the difference.
    """
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + eps * x


def unscaled(x: Any, eps: float) -> Any:  # Any: numpy or torch
    """The inverse of h: sign(x) (u^2 - 1), u = (sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps) (the same, iii).

    As eps u^2 + u = |x| + 1 + eps, u is also 2 (|x| + 1 + eps) / (sqrt(...) + 1), and u - 1 = |x| / (1 + eps (u + 1)):
    written so it keeps float32's precision for small eps.
    """
    c = abs(x) + (1.0 + eps)
    u = 2.0 * c / ((1.0 + 4.0 * eps * c) ** 0.5 + 1.0)
    return x * (u + 1.0) / (1.0 + eps * (u + 1.0))


def backed_up(reward: Any, discount: Any, value: Any, rescale: float = 0.0) -> Any:  # Any: numpy or torch
    """The target reward + discount * value; h(reward + discount h^-1(value)) where values are rescaled with that eps.

    (R2D2, Kapturowski et al. 2019, section 2.3.)
    """
    if not rescale:
        return reward + discount * value
    return rescaled(reward + discount * unscaled(value, rescale), rescale)
