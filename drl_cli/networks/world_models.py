"""Networks of world models (DreamerV3, TD-MPC2): MLPs with RMS norm, a decoder, and the range of returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drl_cli.networks.inputs import Image, Inputs, as_image, visible
from drl_cli.types import EnvSpec, leaves
from drl_cli.utils.deferred import nn, torch
from drl_cli.utils.lazy import Tensor

RATE = 0.01
"""The share of a batch in the moving averages of ReturnRange."""
UNIFORM = 0.01
"""The share of the uniform distribution in each categorical distribution."""


def mixed(logits: Tensor, axis: int = -1) -> Tensor:
    """Return the probabilities of logits, mixed with the uniform distribution."""
    return logits.softmax(axis) * (1.0 - UNIFORM) + UNIFORM / logits.shape[axis]


def sample(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return one-hot samples `[N, C, V]` of the probabilities `[N, C, V]`, given uniform numbers `[N, V]`."""
    is_later = (probs[:, :-1].cumsum(1) <= uniform.unsqueeze(1)).float()  # than class 0, 1, ..., C - 2
    pad = nn.functional.pad
    return pad(is_later, (0, 0, 1, 0), value=1.0) - pad(is_later, (0, 0, 0, 1))


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


def heads(x: torch.Tensor, *mlps: nn.Sequential) -> list[torch.Tensor]:
    """Return the outputs of MLPs with the same inputs and hidden units. Their first layers are one product."""
    weight, bias = (torch.cat([getattr(mlp[0], name) for mlp in mlps]) for name in ("weight", "bias"))
    first = nn.functional.linear(x, weight, bias).chunk(len(mlps), -1)
    return [mlp[1:](hidden) for mlp, hidden in zip(mlps, first, strict=True)]


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


LEAST_SIDE = 6
"""An image is upscaled from a side of at most this number of pixels."""


class Decoder(nn.Module):
    """Predicts observations from latent states `[N, F]`: vectors of any numbers, and images with values in [0, 1].

    `channels` is the number of channels of an image before the last layer. Each layer before has twice as many.
    """

    def __init__(self, features: int, spec: EnvSpec, units: int, channels: int) -> None:
        super().__init__()
        parts = leaves(visible(spec.obs))
        images = {path: as_image(column) for path, column in parts.items()}
        self.images = {path: image for path, image in images.items() if image is not None}
        self.vector = Inputs({path: column for path, column in parts.items() if path not in self.images})
        self.mlp = mlp(features, units, 3, self.vector.size) if self.vector.size else None
        self.cnns = nn.ModuleList([ImageDecoder(features, image, channels) for image in self.images.values()])

    def error(self, latent: torch.Tensor, obs: Any) -> torch.Tensor:  # Any: a tensor, or a dict of tensors
        """Return the error of the prediction for each number of the observations, `[N, numbers]`."""
        parts, errors = obs if isinstance(obs, Mapping) else {"": obs}, []
        if self.mlp is not None:
            errors.append(self.mlp(latent) - self.vector.tensor(parts))
        for (path, image), cnn in zip(self.images.items(), self.cnns, strict=True):
            errors.append((cnn(latent) - pixels(parts[path], image)).flatten(1))
        return torch.cat(errors, 1)


class ImageDecoder(nn.Module):
    """Predicts images `[N, channels, height, width]`: a linear layer, and convolutions that upscale by 2."""

    def __init__(self, features: int, image: Image, channels: int) -> None:
        super().__init__()
        self.shapes = [(image.height, image.width)]
        while min(self.shapes[0]) > LEAST_SIDE:
            height, width = self.shapes[0]
            self.shapes.insert(0, ((height + 1) // 2, (width + 1) // 2))
        widths = [channels * 2**step for step in reversed(range(len(self.shapes)))]
        height, width = self.shapes[0]
        self.first = mlp(features, widths[0] * height * width, 1)
        outputs = [*widths[1:], image.frames * image.channels]
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, outputs, strict=True)])

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.first(latent).unflatten(1, (-1, *self.shapes[0]))
        *hidden, last = self.convs
        for conv, shape in zip(hidden, self.shapes[1:], strict=True):
            x = nn.functional.interpolate(nn.functional.silu(conv(x)), shape)
        image: torch.Tensor = last(x).sigmoid()
        return image


def pixels(obs: torch.Tensor, image: Image) -> torch.Tensor:
    """Return images as `[N, channels, height, width]`. Bytes are scaled to [0, 1], and frames are more channels."""
    shape, axes = image.layout
    x = obs.reshape(len(obs), *shape).permute(axes).flatten(1, 2).float()
    return x / 255.0 if obs.dtype == torch.uint8 else x
