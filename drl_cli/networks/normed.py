"""What world models share: fully connected layers with a norm after each hidden layer, and the range of returns."""

from __future__ import annotations

from drl_cli.utils.deferred import nn, torch

RATE = 0.01
"""The share of a batch in the moving averages of ReturnRange."""


def linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    """Return a linear layer. The weights have the standard deviation scale / sqrt(inputs), and the biases are 0."""
    layer = nn.Linear(inputs, outputs)
    std = scale / inputs**0.5
    if std:  # 0.88 is the standard deviation of a normal distribution that is truncated at 2 and -2
        nn.init.trunc_normal_(layer.weight, 0.0, std / 0.88, -2.0 * std / 0.88, 2.0 * std / 0.88)
    else:
        nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int, units: int, layers: int, outputs: int = 0, scale: float = 1.0) -> nn.Sequential:
    """Return hidden layers with RMS norm and SiLU, and then a linear layer if there are outputs.

    `scale` multiplies the initial weights of the linear layer.
    """
    modules: list[nn.Module] = []
    for _ in range(layers):
        modules += [linear(inputs, units), nn.RMSNorm(units, eps=1e-4), nn.SiLU()]
        inputs = units
    return nn.Sequential(*modules, *([linear(inputs, outputs, scale)] if outputs else []))


class BlockLinear(nn.Module):
    """A linear layer for each block of the inputs: `[blocks, N, inputs]` -> `[blocks, N, outputs]`."""

    def __init__(self, blocks: int, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        layers = [linear(inputs, outputs, scale) for _ in range(blocks)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().t() for layer in layers]))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class ReturnRange(nn.Module):
    """The moving averages of the 5% quantile and the 95% quantile of returns (DreamerV3, arXiv 2301.04104, eq. 7)."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: torch.Tensor
        self.register_buffer("ends", torch.zeros(2))

    def scale(self, returns: torch.Tensor) -> torch.Tensor:
        """Move the averages to the quantiles of `returns` without NaN. Return their distance, at least 1."""
        quantiles = returns.nanquantile(torch.tensor([0.05, 0.95], device=returns.device))
        self.ends += RATE * (quantiles - self.ends)
        return (self.ends[1] - self.ends[0]).clamp(min=1.0)
