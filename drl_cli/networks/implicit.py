"""Implicit quantile networks, which estimate any quantile of a return (Dabney et al. 2018, arXiv 1806.06923, eq. 4).

The parts of the network are:

- `trunk`: all hidden layers except the last.
- `embedding`: a linear layer and a relu, from cosines of the quantile fraction to the width of the trunk's output.
- `online`: the last hidden layer and the output layer. Their input is the product of trunk and embedding.

Policies evaluate these networks in numpy, with the classes below. The trainer's forward pass is
`drl_cli.algos.value.iqn.Algorithm.evaluate`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp import Shapes, activate_numpy, mlp_numpy
from drl_cli.networks.q_network import ActingQNetwork, QShape
from drl_cli.types import Array
from drl_cli.utils.lazy import torch

COSINES = 64
"""The number of inputs of the embedding, which are cos(pi i fraction) for i = 0, ..., COSINES - 1."""


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


class ActingImplicitNetwork:
    """A policy's implicit quantile network in numpy. It estimates the return's quantiles at `fraction` `[K]`.

    `shapes` has the shapes of the parameters: the means of all MLPs, then the sigmas of the noisy MLPs.
    """

    def __init__(self, shapes: dict[str, QShape], fraction: Array) -> None:
        self.parts = {name: ActingQNetwork(shape) for name, shape in shapes.items()}
        self.activation = shapes["online"].network.activation
        self.cosines = cosines(fraction.astype(np.float32))
        self.means: dict[str, list[Array]] = {}
        noisy = [shape for shape in shapes.values() if shape.noisy]
        self.shapes: Shapes = [each for shape in (*shapes.values(), *noisy) for each in shape.shapes]

    def load(self, params: list[Array]) -> list[Array]:
        """Load the parameters, in the order of `shapes`, and compute the embedding; return `params` unchanged."""
        rest = iter(params)
        means = [[next(rest) for _ in part.shape.shapes] for part in self.parts.values()]
        for (name, part), mean in zip(self.parts.items(), means, strict=True):
            sigma = [next(rest) for _ in mean] if part.shape.noisy else []
            self.means[name] = part.load(mean + sigma)  # weights without noise
        self.embedded = np.maximum(self._evaluate("embedding", self.cosines, None), 0.0)  # [K, W]
        return params

    def __call__(self, features: Array, rng: np.random.Generator | None = None) -> Array:
        """Return K quantiles for each action, `[E, actions * K]`, for features `[E, features]`.

        If `rng` is given, it draws new noise for the weights of noisy MLPs. Otherwise, these weights are the means.
        """
        hidden = features
        if "trunk" in self.parts:
            hidden = activate_numpy(self._evaluate("trunk", features, rng), self.activation)
        num, width = self.embedded.shape
        products = hidden[:, None] * self.embedded  # [E, K, W]
        out = self._evaluate("online", products.reshape(-1, width), rng)  # [E K, actions]
        by_action = out.reshape(len(features), num, out.shape[1]).transpose(0, 2, 1)  # [E, actions, K]
        return by_action.reshape(len(features), num * out.shape[1])

    def _evaluate(self, name: str, x: Array, rng: np.random.Generator | None) -> Array:
        """Return the outputs `[n, out]` of one MLP for inputs `[n, in]`."""
        part = self.parts[name]
        if rng is None or not part.shape.noisy:
            return mlp_numpy(self.means[name], x, self.activation)
        return part(x, rng)


ActingNetwork: TypeAlias = ActingQNetwork | ActingImplicitNetwork
"""A policy's Q network, which returns one or more numbers for each action."""
