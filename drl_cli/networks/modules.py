"""Torsos as torch modules. Imports torch: only functions that are about to build one import this file."""

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
    """Observations `[n, ...]` -> their values `[n, size]`, as `Inputs` has them; it has no parameters."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs, self.size = inputs, inputs.width

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        return self.inputs.tensor(obs)


class Convolution(nn.Module):
    """Images `[n, ...]` of one column -> features `[n, size]`, one for each channel and position."""

    def __init__(self, column: Column, layers: nn.Module, size: int) -> None:
        super().__init__()
        found = image(column)
        assert found is not None
        self.image, self.layers, self.size = found, layers, size

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.pixels(obs))
        return features.flatten(1)

    def pixels(self, obs: Tensor) -> Tensor:
        """`[n, channels, height, width]` in the precision of the weights; bytes come to lie in [0, 1]."""
        rows, (shape, axes) = obs.shape[0], self.image.layout
        x = obs.reshape(rows, *shape).permute(axes).reshape(rows, -1, self.image.height, self.image.width)
        x = x.to(next(self.parameters()).dtype, memory_format=torch.channels_last)
        return x.mul_(1 / 255) if obs.dtype == torch.uint8 else x


class Residual(nn.Module):
    """`x + conv(act(conv(act(x))))`, the block of Espeholt et al. 2018, figure 3."""

    def __init__(self, channels: int, activation: type[nn.Module]) -> None:
        super().__init__()
        convs = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)]
        self.layers = nn.Sequential(activation(), convs[0], activation(), convs[1])

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


class Multi(nn.Module):
    """Parts of an observation -> the features of all, joined: of each image's torso, then the others as they are."""

    def __init__(self, torsos: Mapping[str, Convolution], others: Inputs) -> None:
        super().__init__()
        self.paths, self.others = list(torsos), others
        self.torsos = nn.ModuleList(torsos.values())  # a path may hold dots, which names of modules must not
        self.size = others.width + sum(torso.size for torso in torsos.values())

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features = [torso(obs[path]) for path, torso in zip(self.paths, self.torsos, strict=True)]
        if self.others.parts:
            features.append(self.others.tensor(obs).to(features[0].dtype))
        return torch.cat(features, 1)


class Unmasked(nn.Module):
    """A torso of the user's that is given the parts it was built for, without the mask of allowed actions."""

    def __init__(self, torso: nn.Module, paths: Sequence[str]) -> None:
        super().__init__()
        self.torso, self.paths, self.size = torso, paths, torso.size

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features: Tensor = self.torso({path: obs[path] for path in self.paths})
        return features


def convolution(kind: Kind, column: Column, network: NetworkConfig) -> Convolution:
    """The torso `cnn` or `resnet` for one image."""
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
    if network.init == "orthogonal":  # `uniform` is what torch's own initialisation does
        orthogonal_(torso, 2**0.5)
    return torso


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Weights become orthogonal matrices times `gain`, biases 0."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.orthogonal_(parameter, gain)
        else:
            nn.init.zeros_(parameter)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Torch's own random numbers follow from the generator inside, and are outside as if nothing had been drawn."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def users(torso: Any, path: str) -> nn.Module:  # Any: what the user's class made
    """A torso of the user's; raises ValueError when it is not one."""
    if not isinstance(torso, nn.Module) or not isinstance(getattr(torso, "size", None), int):
        raise ValueError(f"network.torso={path}: must be a torch.nn.Module with a whole number `size` of features")
    return torso
