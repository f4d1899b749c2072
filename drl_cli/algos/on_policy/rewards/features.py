"""Normalised features of observations, and small MLPs, for RND and ICM. This file imports torch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.torsos import torso
from drl_cli.optim.group import ProcessGroup
from drl_cli.types import EnvSpec

LIMIT = 5.0
"""Normalised features are clipped to this range (Burda et al. 2018, section 2.4)."""


class Features(nn.Module):
    """Features `[B, size]` of observations, normalised to mean 0 and standard deviation 1 and clipped to [-5, 5].

    The statistics cover all batches of the run so far. The features of images come from a random torso that is never
    trained. Other observations are only flattened. `sums`, float64 `[3, size]`, has the number of batches, the sum of
    the batches' means and the sum of their mean squares.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.torso = torso(network, spec).requires_grad_(False)
        self.size: int = self.torso.size  # type: ignore[assignment]
        self.register_buffer("sums", torch.zeros(3, self.size, dtype=torch.float64))
        self._sums: Tensor | None = None

    def observe(self, obs: Any, group: ProcessGroup) -> None:  # Any: a tensor, or a dict of tensors
        """Add the observations `[B, ...]` of all trainers to the statistics, until the next call.

        `keep` makes the change permanent. A skipped update does not call `keep`.
        """
        x = self.torso(obs).double()
        statistics = torch.stack([torch.ones_like(x[0]), x.mean(0), x.square().mean(0)])
        group.mean_(statistics)
        self._sums = self.get_buffer("sums") + statistics

    def keep(self) -> None:
        """Make the change of the last call of `observe` permanent."""
        if self._sums is not None:
            self.get_buffer("sums").copy_(self._sums)
            self._sums = None

    def forward(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        count, mean, square = self.get_buffer("sums") if self._sums is None else self._sums
        count = count.clamp_min(1.0)
        mean, square = mean / count, square / count
        variance = square - mean.square()
        is_constant = variance <= 1e-12 * square  # else rounding errors would be scaled up
        deviation = torch.where(is_constant, 1.0, variance.clamp_min(0).sqrt())
        x: Tensor = (self.torso(obs) - mean) / deviation
        return x.clamp(-LIMIT, LIMIT).float()


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Return an MLP with ReLU and orthogonal initial weights, as in the code of Burda et al. 2018."""
    sizes = (inputs, *hidden, outputs)
    layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
