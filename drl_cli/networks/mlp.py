"""Multi-layer perceptrons with all weights in one flat vector.

Trainers (torch) and workers (numpy, no torch) use the same layout of the vector. Each layer has a weight `[in, out]`
and a bias `[out]`. With layer norm (Ba et al. 2016, arXiv 1607.06450), the norm's gain `[out]` and bias `[out]` follow
those of each hidden layer. The parameters of the networks of an ensemble follow one another.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from drl_cli.optim.products import Products
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch

Shapes = list[tuple[int, ...]]
NORM_EPS = 1e-5
"""Layer norm adds this number to the variance before it takes the square root."""


def mlp_shapes(inputs: int, hidden: Sequence[int], outputs: int, *, layer_norm: bool = False) -> Shapes:
    """Return the shapes of an MLP's parameters, layer by layer.

    Each layer has a weight `[in, out]` and a bias `[out]`. With layer norm, hidden layers also have the gain `[out]`
    and the bias `[out]` of the norm.
    """
    num_vectors = 3 if layer_norm else 1
    shapes: Shapes = []
    for layer_inputs, layer_outputs in pairwise([inputs, *hidden, outputs]):
        shapes += [(layer_inputs, layer_outputs), *[(layer_outputs,)] * num_vectors]
    return shapes[:-2] if layer_norm else shapes  # the last layer has no norm


def num_params(shapes: Shapes, ensemble: int = 1) -> int:
    """Return the number of parameters of an ensemble of networks with these shapes."""
    return ensemble * sum(map(math.prod, shapes))


def split(flat: Array, shapes: Shapes) -> list[Array]:
    """Split a flat vector `[size]` into views with these shapes; raise ValueError if the vector has another size."""
    total = num_params(shapes)
    if flat.shape != (total,):
        raise ValueError(f"parameter vector has shape {flat.shape}, the network needs ({total},)")
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def mlp_numpy(params: Sequence[Array], x: Array, activation: str) -> Array:
    """Return the outputs `[B, out]` of an MLP for the inputs `x` `[B, in]`.

    `params` has the arrays with the shapes of `mlp_shapes`. The outputs equal those of `FlatMLP.forward` up to float32
    rounding.
    """
    has_norm = len(params) > 2 and params[2].ndim == 1  # without norm, the third array is the next layer's weight
    arrays_per_layer = 4 if has_norm else 2
    last_layer = len(params) - 2
    for i in range(0, len(params), arrays_per_layer):
        x = x.dot(params[i])  # for few rows, twice as fast as @
        x += params[i + 1]
        if i < last_layer:
            if has_norm:
                x = norm_numpy(x, params[i + 2])
                x += params[i + 3]
            x = activate_numpy(x, activation)
    return x


def norm_numpy(x: Array, gain: Array | float = 1.0) -> Array:
    """Normalise each row of `x` `[B, n]` in place to mean 0 and variance 1, multiply it by `gain` `[n]`, return `x`."""
    x -= x.mean(1, keepdims=True)
    x *= gain / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(NORM_EPS))
    return x


def activate_numpy(x: Array, activation: str) -> Array:
    """Return an activation ("relu", "tanh" or "elu") of `x`. For relu and tanh, `x` itself is changed and returned."""
    if activation == "elu":
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))
    out: Array = np.maximum(x, 0.0, out=x) if activation == "relu" else np.tanh(x, out=x)
    return out


class FlatMLP:
    """An ensemble of N equally shaped MLPs, whose parameters are views of the vector `flat` `[size]`."""

    def __init__(
        self, shapes: Shapes, activation: str, flat: Tensor, ensemble: int = 1, products: Products | None = None
    ) -> None:
        self.shapes, self.activation, self.flat, self.ensemble = shapes, activation, flat, ensemble
        self.products = products or Products()
        self.has_norm = len(shapes) > 2 and len(shapes[2]) == 1  # without norm, shapes[2] is the next layer's weight
        self.tensors_per_layer = 4 if self.has_norm else 2
        self.networks = _views(flat, shapes, ensemble)

    def init(self, how: str, generator: "torch.Generator", last: float = 1.0) -> None:
        """Initialise all parameters. Each network of the ensemble gets different random numbers.

        With "uniform", weights and biases are drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)). With "orthogonal", weights
        are orthogonal with gain sqrt(2), or gain 1 in the last layer, and biases are 0. Layer norm starts with gain 1
        and bias 0. The weights and biases of the last layer are then multiplied by `last`: with a small number, all
        outputs start near 0. The generator is on the CPU, so that all devices start with the same parameters.
        """
        for params in self.networks:
            last_layer = len(params) - 2
            for i in range(0, len(params), self.tensors_per_layer):
                weight, bias, *norm = params[i : i + self.tensors_per_layer]  # norm: gain and bias, or empty
                if how == "uniform":
                    for tensor in (weight, bias):
                        noise = torch.rand(tensor.shape, generator=generator)
                        tensor.copy_((2 * noise - 1) / len(weight) ** 0.5)
                else:
                    on_cpu = torch.empty(weight.shape)
                    gain = 1 if i == last_layer else 2**0.5
                    torch.nn.init.orthogonal_(on_cpu, gain, generator=generator)
                    weight.copy_(on_cpu)
                    bias.zero_()
                for tensor, value in zip(norm, (1.0, 0.0), strict=False):
                    tensor.fill_(value)
            params[last_layer] *= last
            params[last_layer + 1] *= last

    def masks(self, uniform: Tensor, rate: float) -> list[Tensor]:
        """Return a dropout mask `[N, B, width]` for each hidden layer, with values 0 or 1 / (1 - rate).

        `uniform` `[B, N * hidden units]` has random numbers in [0, 1). Units whose number is below `rate` are dropped.
        The other units are scaled up, so that the mean of the outputs stays the same.
        """
        factors = (uniform >= rate).to(uniform.dtype) / (1.0 - rate)
        widths = [shape[1] for shape in self.shapes[:-2] if len(shape) == 2]  # of the hidden layers
        layers = torch.split(factors, [self.ensemble * width for width in widths], 1)  # [B, N * width] each
        return [layer.view(len(layer), self.ensemble, -1).transpose(0, 1) for layer in layers]

    def forward(self, x: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Return the outputs `[N, B, out]` for `x` `[B, in]`. Dropout masks multiply the outputs of hidden layers."""
        outputs = [self._evaluate(params, x, [mask[n] for mask in masks]) for n, params in enumerate(self.networks)]
        return torch.stack(outputs) if self.ensemble > 1 else outputs[0].unsqueeze(0)

    def _evaluate(self, params: Sequence[Tensor], h: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Return the outputs `[B, out]` of one network, with a dropout mask `[B, width]` for each hidden layer."""
        last_layer = len(params) - 2
        for i in range(0, len(params), self.tensors_per_layer):
            h = self.products.linear(h, params[i], params[i + 1])
            if i == last_layer:
                break
            if self.has_norm:
                h, *_ = torch.native_layer_norm(h, h.shape[1:], params[i + 2], params[i + 3], NORM_EPS)
            h = activate_(h, self.activation)
            if masks:
                h = h * masks[i // self.tensors_per_layer]
        return h


def _views(flat: Tensor, shapes: Shapes, ensemble: int) -> list[list[Tensor]]:
    """Return views of a vector `[size]` with these shapes, in one list for each network of the ensemble."""
    views = iter(torch.split_with_sizes(flat, [math.prod(shape) for shape in shapes] * ensemble))
    return [[next(views).view(shape) for shape in shapes] for _ in range(ensemble)]


def activate_(x: Tensor, activation: str) -> Tensor:
    """Apply an activation ("relu", "tanh" or "elu") to `x` in place; return `x`."""
    if activation == "relu":
        return torch.relu_(x)
    return torch.tanh_(x) if activation == "tanh" else torch.nn.functional.elu_(x)
