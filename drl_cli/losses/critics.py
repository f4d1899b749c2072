"""Losses for autograd. Each function returns the mean loss of a batch, a tensor `[]`.

`weight` multiplies the loss of each row of the batch. It has importance weights, or 0 for padding. Every loss is a sum
divided by the number of rows, which includes rows with weight 0. Therefore, if each of two trainers has half of the
rows, the average of their gradients is the gradient of one trainer with all rows.
"""

from drl_cli.losses import distributional
from drl_cli.utils.lazy import Tensor, torch


def mse(error: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of `weight * error^2`, `[]`. `weight` (default: 1) has the shape of `error`, such as `[B]`."""
    return mean(error.square(), weight)


def huber(error: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean Huber loss of the errors, `[]` (Mnih et al. 2015).

    The loss of an error e is e^2 / 2 if |e| <= 1, else |e| - 1/2. `weight` multiplies these losses. `error` and
    `weight` have the same shape, such as `[B]`.
    """
    losses = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    return mean(losses, weight)


def twin_critics(q: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean squared error of each of N critics, summed over the critics, `[]`.

    `q` `[N, B]` has the critics' values. `target` `[B]` is the target of all critics and has no gradient. `weight`
    `[B]` multiplies the squared errors of each row. Raise ValueError if `q` or `target` has another shape, because
    broadcasting would give a wrong loss.
    """
    if q.ndim != 2 or target.shape != q.shape[1:]:
        given = f"q has shape {tuple(q.shape)} and target has shape {tuple(target.shape)}"
        raise ValueError(f"{given}; needed are [N, B] and [B]")
    squares = (q - target).square()
    total: Tensor = (squares if weight is None else weight * squares).sum()
    return total / q.shape[1]


def quantile_critic(
    quantiles: Tensor, target: Tensor, fraction: Tensor, kappa: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Return the mean over the batch of the quantile regression loss, `[]` (IQN, Dabney et al. 2018b, eq. 3).

    `quantiles` `[B, K]` has K estimated quantiles of the return. `fraction`, `[K]` or `[B, K]`, has the fraction of
    each quantile, such as 0.5 for the median. `target` `[B, M]` has samples or quantiles of the return. Only
    `quantiles` get a gradient. With the errors u = target_j - quantiles_i, the loss of a row is

        sum_i mean_j |fraction_i - [u < 0]| huber_kappa(u) / kappa

    [u < 0] is 1 or 0. With kappa = 0, |u| replaces huber_kappa(u) / kappa. `weight` `[B]` multiplies each row's loss.
    QR-DQN's loss (Dabney et al. 2018a, eq. 10) is not divided by kappa. For kappa = 1, both are equal.
    """
    with torch.no_grad():
        loss, slope = distributional.quantile_huber(quantiles, target, fraction, kappa)
    # The difference is 0 and has the gradient of the loss. With autograd of `[B, K, M]`, TQC is a third slower.
    loss = loss + (slope * (quantiles - quantiles.detach())).sum(1)
    return mean(loss, weight)


def categorical_critic(logits: Tensor, probs: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy between the target `probs` `[B, K]` and softmax(logits), as in C51, `[]`.

    `logits` is `[B, K]`. Each row of `probs` must sum to 1, as the results of `project` do. `weight` `[B]` multiplies
    each row's loss.
    """
    return mean(distributional.cross_entropy(logits, probs), weight)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float = 0.2, weight: Tensor | None = None) -> Tensor:
    """Return PPO's loss -E[min(r A, clip(r, 1 - clip, 1 + clip) A)], `[]` (Schulman et al. 2017, eq. 7).

    r = pi(a|s) / pi_old(a|s) is the ratio of probabilities, and `log_ratio` `[B]` is log r, with a gradient. A is
    `advantage` `[B]`, without a gradient. `weight` `[B]` multiplies the loss of each row and must not be negative.
    """
    ratio = log_ratio.exp()
    weighted = advantage if weight is None else weight * advantage  # because w min(x, y) = min(w x, w y) for w >= 0
    surrogate = ratio * weighted
    clipped = ratio.detach().clamp(1.0 - clip, 1.0 + clip) * weighted  # has no gradient where it is smaller
    return -torch.where(surrogate <= clipped, surrogate, clipped).mean()


def mean(loss: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of `weight * loss`, `[]`. `weight` (default: 1) has the shape of `loss`, such as `[B]`."""
    weighted = loss if weight is None else weight * loss
    return weighted.mean()
