"""Multi-layer perceptrons with all weights in one flat array and a hand-written backward pass.

One layout serves torch (learner) and numpy (workers, which do not import torch): weight `[in, out]` and bias `[out]`,
layer by layer, network after network where there are several. Forward and backward are plain matrix products: at the
sizes of this field an autograd graph costs more than the arithmetic (docs/performance.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from drl_cli.types import Array
from drl_cli.utils.lazy import torch
from drl_cli.utils.params import Part
from drl_cli.utils.products import Products

Shapes = list[tuple[int, ...]]


def mlp_shapes(inputs: int, hidden: Sequence[int], outputs: int) -> Shapes:
    """Shapes of weights and biases, layer by layer."""
    sizes = [inputs, *hidden, outputs]
    return [shape for pair in pairwise(sizes) for shape in (pair, pair[1:])]


def num_params(shapes: Shapes, ensemble: int = 1) -> int:
    """How many numbers such networks hold."""
    return ensemble * sum(int(np.prod(shape)) for shape in shapes)


def split(flat: Array, shapes: Shapes) -> list[Array]:
    """Views of a flat numpy vector, one per shape; raises ValueError when the sizes do not add up."""
    total = num_params(shapes)
    if flat.shape != (total,):
        raise ValueError(f"parameter vector has shape {flat.shape}, the network needs ({total},)")
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def mlp_numpy(params: Sequence[Array], x: Array, activation: str) -> Array:
    """Forward pass in numpy: `[B, in] -> [B, out]`, equal to `MLP.forward` up to float32 rounding."""
    last = len(params) - 2
    for i in range(0, len(params), 2):
        x = x @ params[i]
        x += params[i + 1]
        if i < last:
            if activation == "relu":
                np.maximum(x, 0.0, out=x)
            elif activation == "tanh":
                np.tanh(x, out=x)
            else:
                x = np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))
    return x


@dataclass(frozen=True)
class Trace:
    """What `MLP.backward` needs of a forward pass: the input of every layer, per network."""

    inputs: "list[list[torch.Tensor]]"


class MLP:
    """`ensemble` networks of one shape; `flat` holds their weights, `grad` the gradients that `backward` writes."""

    def __init__(
        self, shapes: Shapes, activation: str, part: Part, ensemble: int = 1, products: Products | None = None
    ) -> None:
        self.shapes, self.activation, self.ensemble = shapes, activation, ensemble
        self.products = products or Products()
        self.flat, self.grad = part.flat, part.grad
        self.networks = _views(self.flat, shapes, ensemble)
        self.grads = _views(self.grad, shapes, ensemble)

    def on(self, part: Part) -> "MLP":
        """The same networks with other weights."""
        return MLP(self.shapes, self.activation, part, self.ensemble, self.products)

    def init(self, how: str, generator: "torch.Generator", last: float = 1.0) -> None:
        """Initialise all weights; the networks of an ensemble differ.

        "uniform": U(-1/sqrt(fan_in), 1/sqrt(fan_in)); "orthogonal": gain sqrt(2), 1 in the last layer, zero bias.
        The last layer is then multiplied by `last`: a small one starts all outputs near 0.
        """
        for params in self.networks:
            for i in range(0, len(params), 2):
                weight, bias = params[i], params[i + 1]
                if how == "uniform":
                    for tensor in (weight, bias):
                        noise = torch.rand(tensor.shape, generator=generator)
                        tensor.copy_((2 * noise - 1) / len(weight) ** 0.5)
                else:
                    draft = torch.empty(weight.shape)
                    torch.nn.init.orthogonal_(draft, 1 if i == len(params) - 2 else 2**0.5, generator=generator)
                    weight.copy_(draft)
                    bias.zero_()
            weight *= last
            bias *= last

    def forward(self, x: "torch.Tensor") -> "tuple[torch.Tensor, Trace]":
        """`[B, in] -> [N, B, out]`, to be called under torch.no_grad; the trace is for `backward`."""
        outputs, inputs = [], []
        for params in self.networks:
            h, layers = x, []
            for i in range(0, len(params), 2):
                layers.append(h)
                h = self.products.linear(h, params[i], params[i + 1])
                if i < len(params) - 2:
                    h = _activate_(h, self.activation)
            outputs.append(h)
            inputs.append(layers)
        return torch.stack(outputs) if self.ensemble > 1 else outputs[0].unsqueeze(0), Trace(inputs)

    def backward(
        self,
        trace: Trace,
        d_out: "torch.Tensor",
        to_weights: int | None = None,
        first: int = 0,
        inputs: bool = False,
    ) -> "torch.Tensor":
        """Given d loss/d output `[N, M, out]` of the batch's first M rows, write d loss/d weights to `grad`.

        With `to_weights` only so many rows count for that. Returns d loss/d input `[M - to_weights, in - first]` of the
        other rows, from the input `first` on: SAC's actor loss wants those alone. With `inputs` that of all rows.
        """
        rows = d_out.shape[1]
        split = rows if to_weights is None else to_weights
        others = 0 if inputs else split
        d_input = d_out.new_zeros(rows - others, self.shapes[0][0] - first)
        for params, grads, layers, d in zip(self.networks, self.grads, trace.inputs, d_out, strict=True):
            for i in range(len(params) - 2, -1, -2):
                h = _first(layers[i // 2], rows)
                if split:
                    d_weights = _first(d, split)
                    self.products.weight_gradient(_first(h, split), d_weights, grads[i])
                    torch.sum(d_weights, 0, out=grads[i + 1])
                if i > 0:
                    d = _activate_backward_(self.products.input_gradient(d, params[i]), h, self.activation)
            if others < rows:
                d_input += self.products.input_gradient(d[others:], params[0][first:])
        return d_input

    def params(self) -> Array:
        """A float32 copy of `flat` on the CPU."""
        copy: Array = self.flat.cpu().numpy().copy()
        return copy


def _views(flat: "torch.Tensor", shapes: Shapes, ensemble: int) -> "list[list[torch.Tensor]]":
    views = iter(torch.split(flat, [int(np.prod(shape)) for shape in shapes] * ensemble))
    return [[next(views).view(shape) for shape in shapes] for _ in range(ensemble)]


def _first(x: "torch.Tensor", rows: int) -> "torch.Tensor":
    """The first rows; neither a view of them all nor len(x) is free."""
    return x if x.shape[0] == rows else x[:rows]


def _activate_(x: "torch.Tensor", activation: str) -> "torch.Tensor":
    if activation == "relu":
        return torch.relu_(x)
    return torch.tanh_(x) if activation == "tanh" else torch.nn.functional.elu_(x)


def _activate_backward_(d: "torch.Tensor", h: "torch.Tensor", activation: str) -> "torch.Tensor":
    """Gradient through an activation whose output was h, in place."""
    if activation == "relu":
        gradient: torch.Tensor = torch.ops.aten.threshold_backward.grad_input(d, h, 0, grad_input=d)
        return gradient
    return d.mul_(1 - h * h) if activation == "tanh" else torch.where(h > 0, d, d * (h + 1))
