"""Parts of the reward modules RND and ICM: normalised features of observations, and MLPs. This file imports torch."""

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
"""Normalised features are clipped to [-LIMIT, LIMIT] (Burda et al. 2018, arXiv 1810.12894, section 2.4)."""


class Features(nn.Module):
    """Turns observations into features `[B, size]` with mean 0 and standard deviation 1, clipped to [-5, 5].

    The features of images are the outputs of a random CNN, which is never trained. Other observations are flattened. A
    feature that was constant so far becomes 0. Mean and standard deviation are those of all batches of the run so far.
    The buffer `sums`, float64 `[3, size]`, has the number of batches, the sum of the batches' means, and the sum of the
    batches' mean squares.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.torso = torso(network, spec).requires_grad_(False)
        self.size: int = self.torso.size  # type: ignore[assignment]
        self.register_buffer("sums", torch.zeros(3, self.size, dtype=torch.float64))
        self._sums: Tensor | None = None

    def observe(self, obs: Any, group: ProcessGroup) -> None:  # Any: a tensor, or a dict of tensors
        """Add this trainer's observations `[B, ...]` and those of all other trainers to the statistics.

        The next call of `observe` removes them from the statistics, unless `keep` is called in between. A skipped
        update (a loss is not finite) does not call `keep`.
        """
        x = self.torso(obs).double()
        one_batch = torch.ones_like(x[0])
        statistics = torch.stack([one_batch, x.mean(0), x.square().mean(0)])
        group.mean_(statistics)
        self._sums = self.get_buffer("sums") + statistics

    def keep(self) -> None:
        """Make the last call of `observe` permanent."""
        if self._sums is not None:
            self.get_buffer("sums").copy_(self._sums)
            self._sums = None

    def forward(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        num_batches, sum_of_means, sum_of_squares = self.get_buffer("sums") if self._sums is None else self._sums
        num_batches = num_batches.clamp_min(1.0)
        mean, mean_square = sum_of_means / num_batches, sum_of_squares / num_batches
        variance = mean_square - mean.square()
        is_constant = variance <= 1e-12 * mean_square  # a smaller variance is only a rounding error
        deviation = torch.where(is_constant, 1.0, variance.clamp_min(0).sqrt())
        x: Tensor = (self.torso(obs) - mean) / deviation
        return x.clamp(-LIMIT, LIMIT).float()


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Return an MLP from `[B, inputs]` to `[B, outputs]` with ReLU after each layer of `hidden` units.

    The initial weights are orthogonal with the gain sqrt(2), and the initial biases are 0, as in the code of Burda et
    al. 2018 (arXiv 1810.12894).
    """
    sizes = (inputs, *hidden, outputs)
    layers = [nn.Linear(size, next_size) for size, next_size in pairwise(sizes)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    modules = [module for layer in layers for module in (layer, nn.ReLU())]
    return nn.Sequential(*modules[:-1])  # no ReLU after the last layer
