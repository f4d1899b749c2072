"""Implicit quantile networks, which estimate any quantile of a return (Dabney et al. 2018, arXiv 1806.06923, eq. 4).

The trunk consists of all hidden layers except the last. Its output is multiplied by an embedding of the quantile
fraction, which is the relu of a linear layer applied to cosines of the fraction. The product is the input of the last
hidden layer, which the output layer follows.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp import Shapes, activate_, activate_backward_, activate_numpy, mlp_numpy
from drl_cli.networks.q_network import ActingQNetwork, QNetwork, QShape
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch

COSINES = 64
"""Each fraction is embedded by this number of cosines: cos(pi i fraction) for i = 0, ..., 63."""


def implicit_shapes(
    network: NetworkConfig, features: int, actions: int, dueling: bool, noisy: bool
) -> dict[str, QShape]:
    """Return the shapes of `embedding`, `online` (the last two layers) and, with several hidden layers, `trunk`."""
    *before, _ = network.hidden or (0,)
    width = before[-1] if before else features
    shapes = {
        "embedding": QShape(dataclasses.replace(network, hidden=()), COSINES, width),
        "online": QShape(dataclasses.replace(network, hidden=network.hidden[-1:]), width, actions, 1, dueling, noisy),
    }
    if not before:
        return shapes
    trunk = dataclasses.replace(network, hidden=tuple(before[:-1]))
    return {"trunk": QShape(trunk, features, width, noisy=noisy)} | shapes


def cosines(fraction: Any) -> Any:  # Any: numpy or torch
    """Return the cosines of fractions, the inputs of the embedding: `[...]` -> `[..., COSINES]`."""
    if isinstance(fraction, np.ndarray):
        return np.cos(fraction[..., None] * np.arange(COSINES, dtype=np.float32) * np.float32(np.pi))
    return torch.cos(fraction.unsqueeze(-1) * torch.arange(COSINES, device=fraction.device) * torch.pi)


class ImplicitNetwork:
    """The trainer's implicit quantile network, made of Q networks. It evaluates each row at `times` fractions."""

    def __init__(self, parts: dict[str, QNetwork], times: int) -> None:
        self.parts, self.times = parts, times
        self.trunk, self.embedding, self.last = parts.get("trunk"), parts["embedding"], parts["online"]
        self.mlp, self.activation = self.last.mlp, self.last.mlp.activation
        self.noisy = [part for part in parts.values() if part.sigma is not None]
        self.noise_size = sum(part.noise_size for part in self.noisy)

    def init(self) -> None:
        """Initialise the sigmas of noisy weights, and set the weights between dueling streams to 0."""
        for part in self.parts.values():
            part.init()

    def draw(self, normals: Tensor) -> None:
        """Replace the noise of all weights by noise computed from standard normal samples `[noise_size]`."""
        pieces = torch.split(normals, [part.noise_size for part in self.noisy])
        for part, piece in zip(self.noisy, pieces, strict=True):
            part.draw(piece)

    def forward(
        self, x: Tensor, masks: Sequence[Tensor] = (), fraction: Tensor | None = None
    ) -> tuple[Tensor, Any]:  # Any: what `backward` needs
        """Return the quantiles `[N, actions K]` of rows `x` at `fraction`, which is `[N, K]`, or `[K]` for all rows."""
        assert fraction is not None
        state, trunk_trace = x, None
        if self.trunk is not None:
            state, trunk_trace = self.trunk.forward(x)
            state = activate_(state, self.activation)
        num = fraction.shape[-1]
        embedded, embedding_trace = self.embedding.forward(cosines(fraction).view(-1, COSINES))
        embedded = torch.relu_(embedded).view(-1, num, embedded.shape[-1])
        product = state.unsqueeze(1) * embedded  # [N, K, W]
        out, trace = self.last.forward(product.flatten(0, 1), masks)
        out = out.view(len(x), num, -1).transpose(1, 2).flatten(1)
        return out, (state, trunk_trace, embedded, embedding_trace, trace)

    def backward(self, trace: Any, d_out: Tensor, to_inputs: bool = False) -> Tensor:  # Any: made by `forward`
        """Write d loss/d weights, given d loss/d out, for fractions `[N, K]`. With `to_inputs`, return d loss/d x."""
        state, trunk_trace, embedded, embedding_trace, last_trace = trace
        num = embedded.shape[1]
        d_last = d_out.view(len(state), -1, num).transpose(1, 2).reshape(len(state) * num, -1)
        d_product = self.last.backward(last_trace, d_last, to_inputs=True).view_as(embedded)
        d_embedded = activate_backward_(d_product * state.unsqueeze(1), embedded, "relu")
        self.embedding.backward(embedding_trace, d_embedded.flatten(0, 1))
        d_state: Tensor = (d_product * embedded).sum(1)
        if self.trunk is None:
            return d_state
        d_trunk: Tensor = activate_backward_(d_state, state, self.activation)
        return self.trunk.backward(trunk_trace, d_trunk, to_inputs)


class ActingImplicitNetwork:
    """The policy's implicit quantile network in numpy, at fixed fractions `[K]`."""

    def __init__(self, shapes: dict[str, QShape], fraction: Array) -> None:
        self.parts = {name: ActingQNetwork(shape) for name, shape in shapes.items()}
        self.activation = shapes["online"].network.activation
        self.cosines = cosines(fraction.astype(np.float32))
        self.means: dict[str, list[Array]] = {}
        noisy = [shape for shape in shapes.values() if shape.noisy]
        self.shapes: Shapes = [each for shape in (*shapes.values(), *noisy) for each in shape.shapes]

    def load(self, params: list[Array]) -> list[Array]:
        """Load and return `params`: the weights of all parts, then the sigmas of noisy parts."""
        rest = iter(params)
        means = [[next(rest) for _ in part.shape.shapes] for part in self.parts.values()]
        for (name, part), mean in zip(self.parts.items(), means, strict=True):
            sigma = [next(rest) for _ in mean] if part.shape.noisy else []
            self.means[name] = part.load(mean + sigma)
        self.embedded = np.maximum(self._call("embedding", self.cosines, None), 0.0)  # [K, W]
        return params

    def __call__(self, features: Array, rng: np.random.Generator | None) -> Array:
        """Return quantiles, `[E, features] -> [E, actions K]`. If `rng` is given, noisy weights get new noise."""
        state = features
        if "trunk" in self.parts:
            state = activate_numpy(self._call("trunk", features, rng), self.activation)
        num, width = self.embedded.shape
        out = self._call("online", (state[:, None] * self.embedded).reshape(-1, width), rng)
        by_action = out.reshape(len(features), num, out.shape[1]).transpose(0, 2, 1)
        return by_action.reshape(len(features), num * out.shape[1])

    def _call(self, name: str, x: Array, rng: np.random.Generator | None) -> Array:
        part = self.parts[name]
        if rng is None or not part.shape.noisy:
            return mlp_numpy(self.means[name], x, self.activation)
        return part(x, rng)


ValueNetwork: TypeAlias = QNetwork | ImplicitNetwork
"""A trainer's network that returns one or more numbers for each action."""
ActingNetwork: TypeAlias = ActingQNetwork | ActingImplicitNetwork
"""A policy's network that returns one or more numbers for each action."""
