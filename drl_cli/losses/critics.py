"""Losses as scalars for autograd. `weight` multiplies each row's loss: importance weights, or a mask of valid rows.

A loss is a mean over rows, so two trainers with half of the rows each give the gradient of one with all rows.
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
    """Return the mean squared error of N critics `[N, B]`, summed over the critics; `target` is `[B]`, no gradient.

    Raise ValueError if the shapes are others, because they would be broadcast to a wrong loss.
    """
    if q.ndim != 2 or target.shape != q.shape[1:]:
        shapes = tuple(q.shape), tuple(target.shape)
        raise ValueError(f"q has shape {shapes[0]} and target has shape {shapes[1]}; needed are [N, B] and [B]")
    return _differentiable(value.ensemble_mse, q, target, weight)


def quantile_critic(
    quantiles: Tensor, target: Tensor, fraction: Tensor, kappa: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Return the quantile regression loss of `quantiles` `[B, K]` (QR-DQN, Dabney et al. 2018a, eq. 10).

    `target` `[B, M]` has samples or quantiles of the return, without a gradient; `fraction` is `[K]` or `[B, K]`. With
    kappa = 0, the loss uses the absolute error.
    """
    loss = _differentiable(distributional.quantile_huber, quantiles, target, fraction, kappa)
    return mean(loss, weight)


def categorical_critic(logits: Tensor, probs: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of softmax(logits) `[B, K]` and the target `probs` `[B, K]`, which `project` returns."""
    return mean(_differentiable(distributional.cross_entropy, logits, probs), weight)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float = 0.2, weight: Tensor | None = None) -> Tensor:
    """Return PPO's loss -E[min(r A, clip(r, 1 - clip, 1 + clip) A)] (Schulman et al. 2017, eq. 7).

    `log_ratio` `[B]` is log pi(a|s) - log pi_old(a|s), with a gradient; `advantage` `[B]` has none. The loss of each
    row is multiplied by `weight` `[B]`, which is not negative.
    """
    ratio = log_ratio.exp()
    scaled = advantage if weight is None else weight * advantage
    return _differentiable(policy.clipped_surrogate, ratio, scaled, clip)  # weights >= 0 go into the advantage


def _differentiable(formula: Callable[..., tuple[Tensor, ...]], x: Tensor, *others: Any) -> Tensor:
    from drl_cli.losses.nodes import differentiable  # here, because that file needs torch

    return differentiable(formula, x, *others)


def mean(loss: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of each row's loss, which `weight` multiplies."""
    return (loss if weight is None else weight * loss).mean()
