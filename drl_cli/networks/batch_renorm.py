"""Critics with batch renormalisation, for CrossQ."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.modules import ACTIVATIONS
from drl_cli.networks.torsos import torso
from drl_cli.types import EnvSpec


class BatchRenorm(nn.Module):
    """Batch renormalisation of an ensemble's features `[N, B, width]` (Ioffe 2017, arXiv 1702.03275, algorithm 1).

    In training, the features of each network are normalised with the statistics of the batch, corrected by r and d
    toward the running statistics. No gradient flows through r and d. The first `warm_up` batches are normalised as by
    batch norm (r = 1, d = 0). Without training, the running statistics normalise.
    """

    mean: Tensor
    std: Tensor
    batches: Tensor

    def __init__(
        self, ensemble: int, width: int, momentum: float, warm_up: int, r_max: float = 3.0, d_max: float = 5.0
    ) -> None:
        super().__init__()
        self.momentum, self.warm_up, self.r_max, self.d_max, self.eps = momentum, warm_up, r_max, d_max, 1e-3
        self.gain, self.bias = (nn.Parameter(torch.full((ensemble, 1, width), value)) for value in (1.0, 0.0))
        self.register_buffer("mean", torch.zeros(ensemble, 1, width))
        self.register_buffer("std", torch.ones(ensemble, 1, width))
        self.register_buffer("batches", torch.zeros(1))

    def forward(self, x: Tensor, trains: bool) -> Tensor:
        if not trains:
            return (x - self.mean) / self.std * self.gain + self.bias
        mean, var = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
        std = (var + self.eps).sqrt()
        with torch.no_grad():
            is_warm = self.batches >= self.warm_up
            r = torch.where(is_warm, (std / self.std).clamp(1 / self.r_max, self.r_max), 1.0)
            d = torch.where(is_warm, ((mean - self.mean) / self.std).clamp(-self.d_max, self.d_max), 0.0)
            self.mean.lerp_(mean, self.momentum)
            self.std.lerp_(std, self.momentum)
            self.batches.add_(1.0)
        return ((x - mean) / std * r + d) * self.gain + self.bias


class RenormCritics(nn.Module):
    """An ensemble of N critics `[N, B]` that share a torso, with batch renormalisation of inputs and hidden outputs."""

    def __init__(self, network: NetworkConfig, spec: EnvSpec, ensemble: int, momentum: float, warm_up: int) -> None:
        super().__init__()
        self.torso, self.activation = torso(network, spec), ACTIVATIONS[network.activation]()
        size: int = self.torso.size  # type: ignore[assignment]
        widths = (size + spec.action.size, *network.hidden)
        pairs = list(pairwise((*widths, 1)))
        self.weights = nn.ParameterList(_uniform(ensemble, *pair, fan_in=pair[0]) for pair in pairs)
        self.biases = nn.ParameterList(_uniform(ensemble, 1, pair[1], fan_in=pair[0]) for pair in pairs)
        self.norms = nn.ModuleList(BatchRenorm(ensemble, width, momentum, warm_up) for width in widths)

    def forward(self, obs: Any, action: Tensor, trains: bool = False) -> Tensor:  # Any: a tensor, or a dict of tensors
        x = torch.cat([self.torso(obs), action], -1)
        h = self.norms[0](x.expand(len(self.weights[0]), *x.shape), trains)
        for weight, bias, norm in zip(self.weights, self.biases, [*self.norms[1:], None], strict=True):
            h = torch.baddbmm(bias, h, weight)
            h = h if norm is None else norm(self.activation(h), trains)
        values: Tensor = h.squeeze(-1)
        return values


def joined(one: Any, two: Any) -> Any:  # Any: a tensor, or a dict of tensors
    """Return the rows of two batches of observations as one batch."""
    if isinstance(one, torch.Tensor):
        return torch.cat([one, two])
    return {name: torch.cat([part, two[name]]) for name, part in one.items()}


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    return nn.Parameter((2 * torch.rand(shape) - 1) / fan_in**0.5)
