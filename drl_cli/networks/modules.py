"""Torsos and memory as torch modules. Files that must not import torch import this file inside functions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from drl_cli.errors import Refused
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.inputs import Image, Inputs, Kind, convolutions, num_features, sections
from drl_cli.types import ObsSpec, leaves, map_parts

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


class Flat(nn.Module):
    """A torso without parameters, which flattens observations `[n, ...]` into features `[n, size]`."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs, self.size = inputs, inputs.size

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        return self.inputs.tensor(obs)


class Convolution(nn.Module):
    """A convolutional torso, which maps images `[n, ...]` to features `[n, size]`, the flattened output of `layers`."""

    def __init__(self, image: Image, layers: nn.Module, size: int) -> None:
        super().__init__()
        self.image, self.layers, self.size = image, layers, size

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.pixels(obs))
        return features.flatten(1)

    def pixels(self, obs: Tensor) -> Tensor:
        """Return images as `[n, channels, height, width]` in the dtype of the weights. Bytes are scaled to [0, 1].

        Stacked frames become more channels.
        """
        rows = obs.shape[0]
        shape, axes = self.image.layout
        in_order = obs.reshape(rows, *shape).permute(axes)  # [n, frames, channels, height, width]
        x = in_order.reshape(rows, -1, self.image.height, self.image.width)
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
    """A torso for Dict and Tuple observations, which joins the features of the images and the values of the rest.

    `torsos` has a torso for each image, by the path of the image in the observation.
    """

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
    """A user's torso that gets observations without the legal-action mask."""

    def __init__(self, torso: nn.Module, paths: Sequence[str]) -> None:
        super().__init__()
        self.torso, self.paths, self.size = torso, paths, torso.size

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        features: Tensor = self.torso({path: obs[path] for path in self.paths})
        return features


class AnyBatchAxes(nn.Module):
    """A torso that also maps sequences of observations `[B, L, ...]` to features `[B, L, size]`, and so on.

    `torso` maps observations `[n, ...]` to features `[n, size]`. `obs` describes one observation.
    """

    def __init__(self, torso: nn.Module, obs: ObsSpec) -> None:
        super().__init__()
        self.torso, self.size = torso, torso.size
        # One part tells how many axes of a tensor are batch axes, because all parts of an observation have the same.
        self.path, column = next(iter(leaves(obs).items()))
        self.num_own_axes = len(column.shape)

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        tensor = obs[self.path] if isinstance(obs, Mapping) else obs
        batch_shape = tensor.shape[: tensor.ndim - self.num_own_axes]
        if len(batch_shape) > 1:
            obs = map_parts(lambda part: part.flatten(0, len(batch_shape) - 1), obs)
        features: Tensor = self.torso(obs)
        return features.view(*batch_shape, -1) if len(batch_shape) > 1 else features


class Memory(nn.Module):
    """One recurrent layer with `size` outputs: LSTM (Hochreiter & Schmidhuber 1997) or GRU (Cho et al. 2014).

    The state of an environment or sequence, `[state_size]`, is the hidden vector, followed by the cell vector of an
    LSTM. At the start of an episode, the state is 0.
    """

    def __init__(self, network: NetworkConfig, inputs: int) -> None:
        super().__init__()
        self.size, self.state_size = network.memory_size, network.state_size
        self.is_lstm = network.memory == "lstm"
        self.cell = (nn.LSTM if self.is_lstm else nn.GRU)(inputs, self.size)
        if network.init == "orthogonal":  # init=uniform is torch's default: U(-1/sqrt(size), 1/sqrt(size))
            orthogonal_(self.cell, 1.0)
        if self.is_lstm:  # so that the LSTM forgets little at first (Jozefowicz et al. 2015)
            forget_gate = slice(self.size, 2 * self.size)  # torch's order is input, forget, cell and output gate
            with torch.no_grad():
                dict(self.cell.named_parameters())["bias_ih_l0"][forget_gate] += 1.0

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step of n environments; return the outputs `[n, size]` and the next state `[n, state_size]`.

        The inputs `x` are `[n, F]`, and the state is `[n, state_size]`.
        """
        (weights,) = self.cell.all_weights  # of the only layer
        if not self.is_lstm:
            hidden = torch.gru_cell(x, state, *weights)
            return hidden, hidden
        hidden, cell = torch.lstm_cell(x, state.chunk(2, -1), *weights)  # takes half as long as a call of nn.LSTM
        return hidden, torch.cat([hidden, cell], -1)

    def unroll(self, x: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Make T steps of n sequences; return the outputs `[T, n, size]` and the last state `[n, state_size]`.

        The inputs `x` are `[T, n, F]`, and `state` `[n, state_size]` is the first state. `begins`, bool `[T, n]`, is
        True where an episode begins. There, the state is set to 0 before the step. The results equal those of `step` up
        to rounding, but one call of the recurrent layer makes all steps up to the next step where an episode begins.
        """
        later_begins = begins[1:].any(1).nonzero().flatten() + 1
        starts = [0, *later_begins.tolist()]
        ends = [*starts[1:], len(x)]
        outs = []
        for start, end in zip(starts, ends, strict=True):
            state = state.masked_fill(begins[start].unsqueeze(1), 0.0)
            out, state = self._run(x[start:end], state)
            outs.append(out)
        return torch.cat(outs) if len(outs) > 1 else outs[0], state

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Make T steps with the inputs `x` `[T, n, F]`, in which no episode begins; return what `unroll` returns."""
        layer_state = state.unsqueeze(0)  # torch has an axis of layers
        if not self.is_lstm:
            out, layer_state = self.cell(x, layer_state)
            return out, layer_state[0]
        hidden, cell = (part.contiguous() for part in layer_state.chunk(2, -1))
        out, (hidden, cell) = self.cell(x, (hidden, cell))
        return out, torch.cat([hidden[0], cell[0]], -1)


def convolution(kind: Kind, image: Image, network: NetworkConfig) -> Convolution:
    """Return a new torso `cnn` or `resnet` for images with this layout."""
    activation, channels = ACTIVATIONS[network.torso_activation], image.frames * image.channels
    layers: list[nn.Module] = []
    if kind == "resnet":
        for out in sections(network.channels):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [Residual(out, activation), Residual(out, activation)]
            channels = out
        layers.append(activation())
    else:
        for out, kernel, stride in convolutions(image, network.channels):
            layers += [nn.Conv2d(channels, out, kernel, stride), activation()]
            channels = out
    torso = Convolution(image, nn.Sequential(*layers), num_features(kind, image, network.channels))
    if network.init == "orthogonal":  # init=uniform is torch's default
        orthogonal_(torso, 2**0.5)
    return torso


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Set the weights of a module to orthogonal matrices times `gain`, and its biases to 0."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.orthogonal_(parameter, gain)
        else:
            nn.init.zeros_(parameter)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's default generator with a number from `generator` for a `with` block; then restore its old state.

    Modules such as nn.Linear draw their initial weights from the default generator.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def checked(torso: Any, path: str) -> nn.Module:  # Any: what the user's class made
    """Return a user's torso; raise Refused if it is not a torch module with an int attribute `size`."""
    if not isinstance(torso, nn.Module) or not isinstance(getattr(torso, "size", None), int):
        raise Refused(f"network.torso={path}: must be a torch.nn.Module with a whole number `size` of features")
    return torso
