"""Torsos and memory as torch modules. This file imports torch, so other files import it inside functions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.images import Kind, convolutions, image, num_features, sections
from drl_cli.networks.inputs import Inputs
from drl_cli.types import Column, ObsSpec, leaves, map_parts

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


class Flat(nn.Module):
    """A torso without parameters. It flattens observations `[n, ...]` into `[n, size]`, as `Inputs` does."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs, self.size = inputs, inputs.size

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        return self.inputs.tensor(obs)


class Convolution(nn.Module):
    """A convolutional torso: images `[n, ...]` -> features `[n, size]`, the flattened output of the last layer."""

    def __init__(self, column: Column, layers: nn.Module, size: int) -> None:
        super().__init__()
        found = image(column)
        assert found is not None
        self.image, self.layers, self.size = found, layers, size

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.pixels(obs))
        return features.flatten(1)

    def pixels(self, obs: Tensor) -> Tensor:
        """Return images as `[n, channels, height, width]` in the dtype of the weights. Bytes are scaled to [0, 1]."""
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
    """A torso for Dict and Tuple observations. It joins the features of images and the values of other parts."""

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
    """Removes the legal-action mask from observations before a user's torso gets them."""

    def __init__(self, torso: nn.Module, paths: Sequence[str]) -> None:
        super().__init__()
        self.torso, self.paths, self.size = torso, paths, torso.size

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features: Tensor = self.torso({path: obs[path] for path in self.paths})
        return features


class AnyRows(nn.Module):
    """A torso for observations with any number of axes of rows: `[B, L, ...]` -> features `[B, L, size]`."""

    def __init__(self, torso: nn.Module, obs: ObsSpec) -> None:
        super().__init__()
        self.torso, self.size = torso, torso.size
        self.path, column = next(iter(leaves(obs).items()))
        self.ndim = len(column.shape)

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        first = obs[self.path] if isinstance(obs, Mapping) else obs
        rows = first.shape[: first.ndim - self.ndim]
        if len(rows) > 1:
            obs = map_parts(lambda part: part.flatten(0, len(rows) - 1), obs)
        features: Tensor = self.torso(obs)
        return features.view(*rows, -1) if len(rows) > 1 else features


class Memory(nn.Module):
    """One recurrent layer with `size` outputs: LSTM (Hochreiter & Schmidhuber 1997) or GRU (Cho et al. 2014).

    The state of a row `[state_size]` is the hidden vector and, for an LSTM, the cell vector after it. At the start of
    an episode, the state is 0.
    """

    def __init__(self, network: NetworkConfig, inputs: int) -> None:
        super().__init__()
        self.size, self.state_size = network.memory_size, network.state_size
        self.is_lstm = network.memory == "lstm"
        self.cell = (nn.LSTM if self.is_lstm else nn.GRU)(inputs, self.size)
        if network.init == "orthogonal":  # init=uniform is torch's default: U(-1/sqrt(size), 1/sqrt(size))
            orthogonal_(self.cell, 1.0)
        if self.is_lstm:  # so that the LSTM forgets little at first (Jozefowicz et al. 2015)
            with torch.no_grad():
                dict(self.cell.named_parameters())["bias_ih_l0"][self.size : 2 * self.size] += 1.0

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step: inputs `[n, F]` and state `[n, S]` -> outputs `[n, size]` and next state `[n, S]`."""
        (weights,) = self.cell.all_weights  # for one step, torch.lstm_cell takes half as long as nn.LSTM
        if not self.is_lstm:
            hidden = torch.gru_cell(x, state, *weights)
            return hidden, hidden
        hidden, c = torch.lstm_cell(x, state.chunk(2, -1), *weights)
        return hidden, torch.cat([hidden, c], -1)

    def unroll(self, x: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Make T steps: x `[T, n, F]` and first state `[n, S]` -> outputs `[T, n, size]` and last state `[n, S]`.

        `begins`, bool `[T, n]`, is True where an episode begins. There, the state is set to 0 before the step. One call
        computes all steps up to the next step at which an episode begins. Results equal those of `step` up to rounding.
        """
        starts = [0, *(begins[1:].any(1).nonzero().flatten() + 1).tolist()]
        parts = []
        for start, end in zip(starts, [*starts[1:], len(x)], strict=True):
            state = state.masked_fill(begins[start].unsqueeze(1), 0.0)
            out, state = self._run(x[start:end], state)
            parts.append(out)
        return torch.cat(parts) if len(parts) > 1 else parts[0], state

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = state.unsqueeze(0)
        if not self.is_lstm:
            out, hidden = self.cell(x, hidden)
            return out, hidden[0]
        h, c = (part.contiguous() for part in hidden.chunk(2, -1))
        out, (h, c) = self.cell(x, (h, c))
        return out, torch.cat([h[0], c[0]], -1)


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
    """Seed torch's default generator from `generator`, and restore its previous state after the block."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def checked(torso: Any, path: str) -> nn.Module:  # Any: what the user's class made
    """Return a user's torso; raise ValueError if it is not a torch module with an int attribute `size`."""
    if not isinstance(torso, nn.Module) or not isinstance(getattr(torso, "size", None), int):
        raise ValueError(f"network.torso={path}: must be a torch.nn.Module with a whole number `size` of features")
    return torso
