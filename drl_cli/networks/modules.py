"""Torsos as torch modules. This file imports torch, so other files import it only when they build a module."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.images import Kind, convolutions, image, num_features, sections
from drl_cli.networks.inputs import Inputs
from drl_cli.types import Column

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


class Flat(nn.Module):
    """A torso without parameters. It flattens observations `[n, ...]` into `[n, size]`, as `Inputs` does."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs, self.size = inputs, inputs.size

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        return self.inputs.tensor(obs)


class Convolution(nn.Module):
    """A convolutional torso: images `[n, ...]` -> features `[n, size]`, which are the flat output of the last layer."""

    def __init__(self, column: Column, layers: nn.Module, size: int) -> None:
        super().__init__()
        found = image(column)
        assert found is not None
        self.image, self.layers, self.size = found, layers, size

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.pixels(obs))
        return features.flatten(1)

    def pixels(self, obs: Tensor) -> Tensor:
        """Return images as `[n, channels, height, width]` in the dtype of the weights, with bytes scaled to [0, 1]."""
        rows, (shape, axes) = obs.shape[0], self.image.layout
        x = obs.reshape(rows, *shape).permute(axes).reshape(rows, -1, self.image.height, self.image.width)
        x = x.to(next(self.parameters()).dtype, memory_format=torch.channels_last)
        return x.mul_(1 / 255) if obs.dtype == torch.uint8 else x


class Residual(nn.Module):
    """The residual block `x + conv(act(conv(act(x))))` of Espeholt et al. 2018, figure 3."""

    def __init__(self, channels: int, activation: type[nn.Module]) -> None:
        super().__init__()
        convs = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)]
        self.layers = nn.Sequential(activation(), convs[0], activation(), convs[1])

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


class Multi(nn.Module):
    """A torso for observations with several parts. It joins features of the images and values of the other parts."""

    def __init__(self, torsos: Mapping[str, Convolution], others: Inputs) -> None:
        super().__init__()
        self.paths, self.others = list(torsos), others
        self.torsos = nn.ModuleList(torsos.values())  # a ModuleDict forbids dots in names; paths can have dots
        self.size = others.size + sum(torso.size for torso in torsos.values())

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features = [torso(obs[path]) for path, torso in zip(self.paths, self.torsos, strict=True)]
        if self.others.parts:
            features.append(self.others.tensor(obs).to(features[0].dtype))
        return torch.cat(features, 1)


class Unmasked(nn.Module):
    """Calls a user's torso with observations from which the legal-action mask is removed."""

    def __init__(self, torso: nn.Module, paths: Sequence[str]) -> None:
        super().__init__()
        self.torso, self.paths, self.size = torso, paths, torso.size

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features: Tensor = self.torso({path: obs[path] for path in self.paths})
        return features


def convolution(kind: Kind, column: Column, network: NetworkConfig) -> Convolution:
    """Return a new `cnn` or `resnet` for an image observation."""
    found = image(column)
    assert found is not None
    activation, channels = ACTIVATIONS[network.torso_activation], found.frames * found.channels
    layers: list[nn.Module] = []
    if kind == "resnet":
        for out in sections(network.channels):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [Residual(out, activation), Residual(out, activation)]
            channels = out
        layers.append(activation())
    else:
        for out, kernel, stride in convolutions(found, network.channels):
            layers += [nn.Conv2d(channels, out, kernel, stride), activation()]
            channels = out
    torso = Convolution(column, nn.Sequential(*layers), num_features(kind, found, network.channels))
    if network.init == "orthogonal":  # init=uniform is torch's default
        orthogonal_(torso, 2**0.5)
    return torso


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Set weights to orthogonal matrices times `gain`, and biases to 0."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.orthogonal_(parameter, gain)
        else:
            nn.init.zeros_(parameter)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's default generator from `generator`; after the block, restore the default generator's state."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def checked(torso: Any, path: str) -> nn.Module:  # Any: what the user's class made
    """Return a user's torso; raise ValueError if the torso is not a torch module with a whole number `size`."""
    if not isinstance(torso, nn.Module) or not isinstance(getattr(torso, "size", None), int):
        raise ValueError(f"network.torso={path}: must be a torch.nn.Module with a whole number `size` of features")
    return torso
