"""Value targets and losses, as pure functions of batched tensors."""

from typing import Any

from drl_cli.utils.lazy import Tensor, torch


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Return the soft Bellman target r + discount (min_i Q_i(s', a') - alpha log pi(a'|s')), `[B]`.

    `reward`, `discount` and `next_log_prob` are `[B]`, and `next_q` is `[N, B]`. `discount` is gamma^k for k-step
    rewards, or 0 if the episode terminated. If the episode was truncated, `discount` is not 0, so the target bootstraps
    (SAC, Haarnoja et al. 2018, eq. 3 and 5).
    """
    return reward + discount * (next_q.min(0).values - alpha * next_log_prob)


def ensemble_mse(q: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean squared error, summed over the N critics, and its gradient `[N, B]`.

    `q` is `[N, B]`, and `target` is `[B]`. `weight` `[B]` multiplies the squared error of each row (prioritized replay,
    Schaul et al. 2015, algorithm 1).
    """
    error = q - target
    weighted = error if weight is None else weight * error
    return (weighted * error).sum() / q.shape[1], weighted * (2.0 / q.shape[1])


def softmax_policy(q: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the probabilities `[B, A]` and the entropy `[B]` of the policy softmax(q / temperature), given q `[B, A]`.

    The soft value of a state is sum_a pi(a) q(a) + temperature * entropy. For this policy, the soft value equals
    temperature * logsumexp(q / temperature) (Haarnoja et al. 2017, eq. 3).
    """
    log_probs = (q / temperature).log_softmax(-1)
    probs = log_probs.exp()
    return probs, -(probs * log_probs).sum(-1)


def scaled_log_policy(q: Tensor, action: Tensor, temperature: float, floor: float) -> Tensor:
    """Return Munchausen's reward `[B]`: temperature * log pi(a|s), clipped to [floor, 0].

    pi is softmax(q / temperature), `q` is `[B, A]`, and `action` is int64 `[B]` (Vieillard et al. 2020, section 2).
    """
    log_probs = (q / temperature).log_softmax(-1)
    return (temperature * log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)).clamp(floor, 0.0)


def huber(error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Huber loss and its derivative, both in the shape of `error`.

    The loss is e^2 / 2 if |e| <= 1, else |e| - 1/2. The derivative is the error clipped to [-1, 1] (Mnih et al. 2015).
    """
    slope = error.clamp(-1.0, 1.0)
    return torch.sub(error, slope, alpha=0.5).mul_(slope), slope


def expectile(error: Tensor, share: float) -> Tensor:
    """Return |share - 1(error < 0)| error^2 `[B]`, whose minimum is the expectile `share` (IQL, eq. 3)."""
    return torch.where(error > 0, share, 1.0 - share) * error.square()


def rescaled(x: Any, eps: float) -> Any:  # Any: numpy or torch
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x (Pohlen et al. 2018, arXiv 1805.11593, proposition A.2).

    h compresses large values. The code avoids the subtraction sqrt(...) - 1, which is inexact for small x.
    """
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + eps * x


def unscaled(x: Any, eps: float) -> Any:  # Any: numpy or torch
    """Return the inverse of h: sign(x) (u^2 - 1), where u = (sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps).

    The formula is from Pohlen et al. 2018, proposition A.2 (iii). The code uses two equivalent forms, which keep the
    precision of float32 for small eps: u = 2 (|x| + 1 + eps) / (sqrt(...) + 1) and u - 1 = |x| / (1 + eps (u + 1)).
    """
    c = abs(x) + (1.0 + eps)
    u = 2.0 * c / ((1.0 + 4.0 * eps * c) ** 0.5 + 1.0)
    return x * (u + 1.0) / (1.0 + eps * (u + 1.0))


def backed_up(reward: Any, discount: Any, value: Any, rescale: float = 0.0) -> Any:  # Any: numpy or torch
    """Return the target reward + discount * value.

    With `rescale` = eps > 0, the network learns values rescaled by the function h of `rescaled`. The target is then
    h(reward + discount * h^-1(value)) (R2D2, Kapturowski et al. 2019, section 2.3).
    """
    if not rescale:
        return reward + discount * value
    return rescaled(reward + discount * unscaled(value, rescale), rescale)
