"""Value targets and losses, as pure functions of batched tensors."""

from typing import Any

from drl_cli.utils.lazy import Tensor, torch


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Return the soft Bellman target r + discount (min_i Q_i(s', a') - alpha log pi(a'|s')), `[B]`.

    `reward` and `discount` are `[B]`. `next_q` `[N, B]` has the values Q_i(s', a') of N critics, and `next_log_prob`
    `[B]` has log pi(a'|s'). `alpha`, `[]` or `[1]`, is the temperature. `discount` is gamma^k for k-step rewards, or 0
    if the episode terminated, but not if it was only truncated (SAC, Haarnoja et al. 2018, arXiv 1812.05905, eq. 3, 5).
    """
    return reward + discount * (next_q.min(0).values - alpha * next_log_prob)


def softmax_policy(q: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the probabilities `[B, A]` and the entropy `[B]` of the policy pi = softmax(q / temperature).

    `q` `[B, A]` has action values. The soft value of a state, sum_a pi(a) q(a) + temperature * entropy, equals
    temperature * logsumexp(q / temperature) for this policy (Haarnoja et al. 2017, arXiv 1702.08165, theorem 1).
    """
    log_probs = (q / temperature).log_softmax(-1)
    probs = log_probs.exp()
    return probs, -(probs * log_probs).sum(-1)


def scaled_log_policy(q: Tensor, action: Tensor, temperature: float, floor: float) -> Tensor:
    """Return temperature * log pi(a|s), clipped to [floor, 0], `[B]`, where pi is softmax(q / temperature).

    Munchausen RL multiplies the result by a constant and adds it to the reward (Vieillard et al. 2020, section 2). `q`
    is `[B, A]`, and `action` is int64 `[B]`.
    """
    log_probs = (q / temperature).log_softmax(-1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return (temperature * log_prob).clamp(floor, 0.0)


def expectile(error: Tensor, tau: float) -> Tensor:
    """Return the loss of expectile regression, |tau - [error < 0]| error^2, in the shape of `error`.

    `error` is target - estimate, and [error < 0] is 1 or 0. The estimate with the smallest mean loss is the
    tau-expectile of the targets. With tau = 0.5, this is their mean (IQL, Kostrikov et al. 2021, section 4.1).
    """
    factor = torch.where(error > 0, tau, 1.0 - tau)
    return factor * error.square()


def rescaled(x: Any, eps: float) -> Any:  # Any: numpy or torch
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, in the shape of x. The function h compresses large values.

    The source is Pohlen et al. 2018, arXiv 1805.11593, proposition A.2. The code uses the equal form
    x / (sqrt(|x| + 1) + 1) + eps x, because the subtraction sqrt(...) - 1 is inexact for small x.
    """
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + eps * x


def unscaled(x: Any, eps: float) -> Any:  # Any: numpy or torch
    """Return the inverse of the function h of `rescaled`, in the shape of x.

    The inverse is sign(x) (u^2 - 1), where u = (sqrt(1 + 4 eps b) - 1) / (2 eps) and b = |x| + 1 + eps (Pohlen et al.
    2018, proposition A.2 (iii)). The code uses two equal forms, which keep the precision of float32 for small eps:
    u = 2 b / (sqrt(1 + 4 eps b) + 1) and u - 1 = |x| / (1 + eps (u + 1)).
    """
    b = abs(x) + (1.0 + eps)
    u = 2.0 * b / ((1.0 + 4.0 * eps * b) ** 0.5 + 1.0)
    return x * (u + 1.0) / (1.0 + eps * (u + 1.0))


def backed_up(reward: Any, discount: Any, value: Any, rescale: float = 0.0) -> Any:  # Any: numpy or torch
    """Return the Bellman target reward + discount * value, for arrays or tensors that broadcast.

    With `rescale` = eps > 0, `value` and the result are rescaled by the function h of `rescaled`. The result is then
    h(reward + discount * h^-1(value)) (R2D2, Kapturowski et al. 2019, section 2.3).
    """
    if rescale == 0.0:
        return reward + discount * value
    target = reward + discount * unscaled(value, rescale)
    return rescaled(target, rescale)
