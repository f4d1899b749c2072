"""MPPI: plans sequences of actions by sampling (Williams et al. 2015, arXiv 1509.01149), for E environments at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from drl_cli.utils.lazy import Tensor, torch


def mppi(
    returns: Callable[[Tensor], Tensor],
    proposed: Tensor,
    mean: Tensor,
    noise: Tensor,
    elites: int,
    temperature: float,
    std_range: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean and standard deviation `[E, H, A]` of plans, the elites `[E, K, H, A]`, and their weights `[E, K]`.

    `returns` gives the returns `[E, N]` of N sequences of actions `[E, N, H, A]`. Each iteration samples sequences
    around `mean` `[E, H, A]`, in the first iteration with the largest standard deviation. The sequences `proposed`
    `[E, P, H, A]` compete with them. The K = `elites` best sequences, weighted by softmax(temperature * return), give
    the next mean and the next standard deviation. `noise` `[E, iterations, N - P, H, A]` is standard normal.
    """
    std = torch.full_like(mean, std_range[1])
    for normal in noise.unbind(1):
        sampled = (mean.unsqueeze(1) + std.unsqueeze(1) * normal).clamp(-1.0, 1.0)
        action = torch.cat([proposed, sampled], 1)
        best, index = returns(action).nan_to_num().topk(elites, 1)
        elite = action.gather(1, index[:, :, None, None].expand(-1, -1, *mean.shape[1:]))
        weight = (temperature * best).softmax(1)
        share = weight[:, :, None, None]
        mean = (share * elite).sum(1)
        std = (share * (elite - mean.unsqueeze(1)).square()).sum(1).sqrt().clamp(*std_range)
    return mean, std, elite, weight


def first_action(rng: np.random.Generator, std: Tensor, elite: Tensor, weight: Tensor) -> Tensor:
    """Return the first action `[E, A]` of a random elite, whose probability is its weight, with noise of size `std`."""
    gumbel = torch.from_numpy(rng.gumbel(size=weight.shape))
    chosen = elite[torch.arange(len(elite)), (weight.log() + gumbel).argmax(1), 0]  # Gumbel-max
    normal = torch.from_numpy(rng.standard_normal(chosen.shape, np.float32))
    return (chosen + std[:, 0] * normal).clamp(-1.0, 1.0)
