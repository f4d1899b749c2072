"""Q networks: MLPs from features to the values of each action, optionally with dueling streams and noisy weights.

Dueling (Wang et al. 2016, arXiv 1511.06581, eq. 9): the last hidden layer is twice as wide. The first half of its units
is the stream of the state's value, and the second half is the stream of the advantages. Weights of the last layer that
would connect one stream to the output of the other stay 0.

Noisy (Fortunato et al. 2018, arXiv 1706.10295, section 3): every weight is mean + sigma * noise, with factorised noise.

Implicit quantile networks estimate any quantile of a return (Dabney et al. 2018, arXiv 1806.06923, eq. 4). Their parts
are:

- `trunk`: all hidden layers except the last.
- `embedding`: a linear layer and a relu, from cosines of the quantile fraction to the width of the trunk's output.
- `online`: the last hidden layer and the output layer. Their input is the product of trunk and embedding.

This file has the shapes and the noise. The networks are in `drl_cli.networks.q_module` (torch) and
`drl_cli.networks.acting` (numpy).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.errors import Refused
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp import Shapes, mlp_shapes
from drl_cli.utils.lazy import torch

COSINES = 64
"""The number of inputs of the embedding, which are cos(pi i fraction) for i = 0, ..., COSINES - 1."""


@dataclass(frozen=True, kw_only=True)
class QShape:
    """The shape of a Q network, which maps `[N, features]` to `atoms` numbers for each action, `[N, actions * atoms]`.

    `network` has the hidden layers. In a dueling network, the last one is twice as wide as `network` says.
    """

    network: NetworkConfig
    features: int
    actions: int
    atoms: int = 1
    dueling: bool = False
    noisy: bool = False

    @property
    def hidden(self) -> tuple[int, ...]:
        """The widths of all hidden layers. Raise Refused if `dueling` is True but there is no hidden layer."""
        hidden = tuple(self.network.hidden)
        if not self.dueling:
            return hidden
        if not hidden:
            raise Refused("algo.dueling=true needs a hidden layer to split; say network.hidden=[256]")
        return (*hidden[:-1], 2 * hidden[-1])

    @property
    def outputs(self) -> int:
        """The number of the last layer's outputs, before `joined` combines the dueling streams."""
        num_values = 1 + self.actions if self.dueling else self.actions
        return num_values * self.atoms

    @property
    def shapes(self) -> Shapes:
        """The shapes of the MLP's parameters."""
        return mlp_shapes(self.features, self.hidden, self.outputs, layer_norm=self.network.layer_norm)

    @property
    def noise_size(self) -> int:
        """The number of random values that factorised noise needs: one for each input and output of each layer."""
        weights = [shape for shape in self.shapes if len(shape) == 2]
        return sum(inputs + outputs for inputs, outputs in weights)

    def zero_between_streams_(self, last: Any) -> None:  # Any: numpy or torch
        """Set the weights of a dueling network's last layer that would connect the two streams to 0, in place.

        `last` `[..., 2 H, (1 + actions) * atoms]` has the layer's weights. The first H inputs and the first `atoms`
        outputs are the stream of the value.
        """
        half = self.network.hidden[-1]
        last[..., :half, self.atoms :] = 0.0
        last[..., half:, : self.atoms] = 0.0

    def joined(self, out: Any) -> Any:  # Any: numpy or torch
        """Combine the outputs of the dueling streams: return value + advantage - mean advantage over the actions.

        `out` is `[N, (1 + actions) * atoms]`, and the result is `[N, actions * atoms]`.
        """
        advantage = out[:, self.atoms :].reshape(-1, self.actions, self.atoms)
        value = out[:, : self.atoms]
        joined = advantage + (value - advantage.mean(1))[:, None]
        return joined.reshape(-1, self.actions * self.atoms)


def factorised(shapes: Shapes, normals: Any) -> list[Any]:  # Any: numpy or torch
    """Return the noise of each parameter of an MLP, `[..., *shape]` (Fortunato et al. 2018, eq. 10 and 11).

    `normals` `[..., noise_size]` has standard normal samples, one for each input and output of each layer. With
    f(x) = sign(x) sqrt(|x|), the noise of a weight is f(input's sample) * f(output's sample), and the noise of a bias
    is f(output's sample). The noise of layer norm is 0.
    """
    scaled = normals / (abs(normals) + 1e-12) ** 0.5  # f(x); the small number avoids 0 / 0
    noise: list[Any] = []
    begin = 0
    for i, shape in enumerate(shapes):
        if len(shape) == 2:
            middle, end = begin + shape[0], begin + sum(shape)
            of_inputs, of_outputs = scaled[..., begin:middle], scaled[..., middle:end]
            of_weight = of_inputs[..., None] * of_outputs[..., None, :]
            noise += [of_weight, of_outputs]  # of the weight, and of the bias that follows
            begin = end
        elif len(shapes[i - 1]) == 1:  # a vector of layer norm, because a layer's bias follows a weight
            noise.append(0.0 * of_outputs)  # zeros in numpy and in torch
    return noise


def implicit_shapes(
    network: NetworkConfig, features: int, actions: int, *, dueling: bool, noisy: bool
) -> dict[str, QShape]:
    """Return the shapes of the MLPs `trunk` (with more than one hidden layer), `embedding` and `online`, by name.

    For `trunk` and `embedding`, `QShape.actions` is the number of outputs. The embedding has no noise, and only
    `online` has dueling streams.
    """

    def mlp(hidden: Sequence[int]) -> NetworkConfig:
        return dataclasses.replace(network, hidden=tuple(hidden))

    trunk, last = network.hidden[:-1], network.hidden[-1:]  # the layers of `trunk`, and the hidden layer of `online`
    width = trunk[-1] if trunk else features  # the number of inputs of `online`
    shapes = {
        "embedding": QShape(network=mlp(()), features=COSINES, actions=width),
        "online": QShape(network=mlp(last), features=width, actions=actions, dueling=dueling, noisy=noisy),
    }
    if not trunk:
        return shapes
    trunk_shape = QShape(network=mlp(trunk[:-1]), features=features, actions=width, noisy=noisy)
    return {"trunk": trunk_shape} | shapes


def cosines(fraction: Any) -> Any:  # Any: numpy or torch
    """Return the embedding's inputs, `[..., COSINES]`, for quantile fractions `[...]` (Dabney et al. 2018, eq. 4)."""
    if isinstance(fraction, np.ndarray):
        return np.cos(fraction[..., None] * np.arange(COSINES, dtype=np.float32) * np.float32(np.pi))
    return torch.cos(fraction.unsqueeze(-1) * torch.arange(COSINES, device=fraction.device) * torch.pi)
