"""The symlog transformation, and numbers that are predicted as distributions over bins of symexp width (DreamerV3)."""

from __future__ import annotations

from drl_cli.utils.lazy import Tensor, torch


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) log(1 + |x|), which compresses large numbers (Hafner et al. 2023, arXiv 2301.04104, eq. 9)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    return x.sign() * x.abs().expm1()


def symexp_bins(num: int, most: float = 20.0, device: torch.device | None = None) -> Tensor:
    """Return the bins symexp(-most), ..., symexp(most) `[num]` of a number's distribution. `num` must be odd.

    The loss of a distribution over these bins is `two_hot_loss`. The bins are exactly symmetric.
    """
    half = symexp(torch.linspace(0.0, most, num // 2 + 1, device=device))
    return torch.cat([-half.flip(0), half[1:]])


def bins_mean(probs: Tensor, bins: Tensor) -> Tensor:
    """Return the mean `[...]` of distributions over symmetric bins `[K]`, whose probabilities are `[..., K]`.

    The probabilities of each bin b and of -b are subtracted first. So the mean of equal probabilities is exactly 0,
    although the bins are huge numbers.
    """
    middle = len(bins) // 2
    mean: Tensor = (probs[..., middle:] - probs[..., : middle + 1].flip(-1)) @ bins[middle:]
    return mean
