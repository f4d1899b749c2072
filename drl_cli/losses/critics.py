"""Losses as scalars for autograd. `weight` multiplies each row's loss: importance weights, or a mask of valid rows.

Every loss is a mean over rows. The average of two trainers' gradients, from half of the rows each, is therefore the
gradient of one trainer with all rows.
"""

from collections.abc import Callable
from typing import Any

from drl_cli.losses import distributional, policy, value
from drl_cli.utils.lazy import Tensor


def mse(error: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of the squared errors; `error` and `weight` have the same shape, such as `[B]` or `[n, T]`."""
    return mean(error.square(), weight)


def huber(error: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean Huber loss: e^2 / 2 if |e| <= 1, else |e| - 1/2 (Mnih et al. 2015). Shapes are as in `mse`."""
    return mean(_differentiable(value.huber, error), weight)


def twin_critics(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean squared error of N critics, summed over the critics.

    The values `q` are `[N, B]`. `target`, without a gradient, and `weight` are `[B]`. Raise ValueError if `q` or
    `target` has another shape, because broadcasting would give a wrong loss.
    """
    if q.ndim != 2 or target.shape != q.shape[1:]:
        shapes = tuple(q.shape), tuple(target.shape)
        raise ValueError(f"q has shape {shapes[0]} and target has shape {shapes[1]}; needed are [N, B] and [B]")
    return _differentiable(value.ensemble_mse, q, target, weight)


def quantile_critic(
    quantiles: Tensor, target: Tensor, fraction: Tensor, kappa: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Return the quantile regression loss of `quantiles` `[B, K]` (QR-DQN, Dabney et al. 2018a, eq. 10).

    `quantiles` are estimates at the fractions `fraction`, `[K]` or `[B, K]`. `target` `[B, M]` has samples or quantiles
    of the return, without a gradient. With kappa = 0, the loss uses the absolute error.
    """
    loss = _differentiable(distributional.quantile_huber, quantiles, target, fraction, kappa)
    return mean(loss, weight)


def categorical_critic(logits: Tensor, probs: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of softmax(logits) `[B, K]` and the target `probs` `[B, K]`, as from `project`."""
    return mean(_differentiable(distributional.cross_entropy, logits, probs), weight)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float = 0.2, weight: Tensor | None = None) -> Tensor:
    """Return PPO's loss -E[min(r A, clip(r, 1 - clip, 1 + clip) A)] (Schulman et al. 2017, eq. 7).

    `log_ratio` `[B]` is log pi(a|s) - log pi_old(a|s), with a gradient. `advantage` `[B]` has no gradient. `weight`
    `[B]`, which must not be negative, multiplies the loss of each row.
    """
    ratio = log_ratio.exp()
    scaled = advantage if weight is None else weight * advantage
    return _differentiable(policy.clipped_surrogate, ratio, scaled, clip)  # a factor >= 0 does not change the minimum


def _differentiable(formula: Callable[..., tuple[Tensor, ...]], x: Tensor, *others: Any) -> Tensor:
    from drl_cli.losses.nodes import differentiable  # here, because that file needs torch

    return differentiable(formula, x, *others)


def mean(loss: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of `loss`, or of `weight * loss`; both have the same shape, such as `[B]`."""
    return (loss if weight is None else weight * loss).mean()
