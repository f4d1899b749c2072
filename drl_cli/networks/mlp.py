"""Multi-layer perceptrons with all weights in one flat vector and a hand-written backward pass.

Trainers (torch) and workers (numpy, no torch) use the same layout of the vector. Each layer has a weight `[in, out]`
and a bias `[out]`. With layer norm (Ba et al. 2016, arXiv 1607.06450), each hidden layer also has the norm's gain
`[out]` and bias `[out]`. The networks of an ensemble follow one another. The backward pass is written by hand, because
autograd's graph of such a small network takes longer than the arithmetic (docs/performance.md).
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from drl_cli.optim.params import FlatPart
from drl_cli.optim.products import Products
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch

Shapes = list[tuple[int, ...]]
NORM_EPS = 1e-5
"""Layer norm adds this number to the variance before it takes the square root."""


def mlp_shapes(inputs: int, hidden: Sequence[int], outputs: int, layer_norm: bool = False) -> Shapes:
    """Return the shapes of all parameters, layer by layer. With layer norm, hidden layers have three vectors."""
    vectors = 3 if layer_norm else 1
    shapes: Shapes = []
    for layer_inputs, layer_outputs in pairwise([inputs, *hidden, outputs]):
        shapes += [(layer_inputs, layer_outputs), *[(layer_outputs,)] * vectors]
    return shapes[:-2] if layer_norm else shapes  # the last layer is not normalised


def num_params(shapes: Shapes, ensemble: int = 1) -> int:
    """Return the number of parameters of an ensemble of networks with these shapes."""
    return ensemble * sum(map(math.prod, shapes))


def split(flat: Array, shapes: Shapes) -> list[Array]:
    """Split a flat vector `[size]` into views with these shapes; raise ValueError if the vector has another size."""
    total = num_params(shapes)
    if flat.shape != (total,):
        raise ValueError(f"parameter vector has shape {flat.shape}, the network needs ({total},)")
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def mlp_numpy(params: Sequence[Array], x: Array, activation: str) -> Array:
    """Return a network's output, `[B, in]` -> `[B, out]`. It equals `FlatMLP.forward` up to float32 rounding."""
    last, step = len(params) - 2, 4 if len(params) > 2 and params[2].ndim == 1 else 2
    for i in range(0, len(params), step):
        x = x @ params[i]
        x += params[i + 1]
        if i < last:
            if step == 4:
                x = norm_numpy(x, params[i + 2])
                x += params[i + 3]
            x = activate_numpy(x, activation)
    return x


def norm_numpy(x: Array, gain: Array | float = 1.0) -> Array:
    """Normalise the rows of `x` `[B, n]` in place to mean 0 and variance 1, and multiply them by `gain` `[n]`."""
    x -= x.mean(1, keepdims=True)
    x *= gain / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(NORM_EPS))
    return x


def activate_numpy(x: Array, activation: str) -> Array:
    """Apply an activation to a numpy array, in place if possible."""
    if activation == "elu":
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))
    out: Array = np.maximum(x, 0.0, out=x) if activation == "relu" else np.tanh(x, out=x)
    return out


@dataclass(slots=True)
class ForwardPass:
    """Intermediate results of `FlatMLP.forward` that `FlatMLP.backward` needs, by network and layer."""

    inputs: list[list[Tensor]]  # the input of each layer
    norms: list[list[tuple[Tensor, ...]]]  # (input, mean, 1 / standard deviation) of each layer norm
    outputs: list[list[Tensor]]  # the output of each hidden layer, before dropout
    masks: Sequence[Tensor]  # the dropout masks `[N, B, width]` of each hidden layer


class FlatMLP:
    """An ensemble of N equally shaped networks. Their parameters and gradients are the two vectors of a FlatPart."""

    def __init__(
        self, shapes: Shapes, activation: str, part: FlatPart, ensemble: int = 1, products: Products | None = None
    ) -> None:
        self.shapes, self.activation, self.ensemble = shapes, activation, ensemble
        self.products = products or Products()
        # The number of tensors of a hidden layer: weight and bias, and with layer norm also its gain and bias.
        self.step = 4 if len(shapes) > 2 and len(shapes[2]) == 1 else 2
        self.flat, self.grad = part.flat, part.grad
        self.networks = _views(self.flat, shapes, ensemble)
        self.grads = _views(self.grad, shapes, ensemble)
        self.nothing = self.flat.new_zeros(0)

    def writing(self, grad: Tensor) -> "FlatMLP":
        """Return the same networks, whose `backward` writes the gradient into `grad` `[size]`."""
        other = copy.copy(self)
        other.grad, other.grads = grad, _views(grad, self.shapes, self.ensemble)
        return other

    def first(self, num: int) -> "FlatMLP":
        """Return the first `num` networks of the ensemble, with views of their parameters and gradients."""
        other, size = copy.copy(self), num_params(self.shapes, num)
        other.ensemble, other.flat, other.grad = num, self.flat[:size], self.grad[:size]
        other.networks, other.grads = self.networks[:num], self.grads[:num]
        return other

    def init(self, how: str, generator: "torch.Generator", last: float = 1.0) -> None:
        """Initialise all weights; each network of the ensemble gets different random numbers.

        With "uniform", weights and biases are drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)). With "orthogonal", weights
        are orthogonal with gain sqrt(2), or gain 1 in the last layer, and biases are 0. The weights and biases of the
        last layer are then multiplied by `last`; a small number makes all outputs start near 0.
        """
        for params in self.networks:
            for i in range(0, len(params), self.step):
                weight, bias, *norm = params[i : i + self.step]
                if how == "uniform":
                    for tensor in (weight, bias):
                        noise = torch.rand(tensor.shape, generator=generator)
                        tensor.copy_((2 * noise - 1) / len(weight) ** 0.5)
                else:
                    draft = torch.empty(weight.shape)
                    torch.nn.init.orthogonal_(draft, 1 if i == len(params) - 2 else 2**0.5, generator=generator)
                    weight.copy_(draft)
                    bias.zero_()
                for tensor, value in zip(norm, (1.0, 0.0), strict=False):
                    tensor.fill_(value)
            weight *= last
            bias *= last

    def masks(self, uniform: Tensor, rate: float) -> list[Tensor]:
        """Return a dropout mask `[N, B, width]` for each hidden layer, with values 0 or 1 / (1 - rate).

        `uniform` `[B, N * hidden units]` has random numbers in [0, 1). Units whose number is below `rate` are dropped.
        """
        factors = (uniform >= rate).to(uniform.dtype) / (1.0 - rate)
        parts = torch.split(factors, [self.ensemble * width for width in self._widths()], 1)
        return [part.view(len(part), self.ensemble, -1).transpose(0, 1) for part in parts]

    def forward(self, x: Tensor, masks: Sequence[Tensor] = ()) -> tuple[Tensor, ForwardPass]:
        """Return the outputs, `[B, in]` -> `[N, B, out]`, and the intermediate results for `backward`.

        Call it under torch.no_grad. Dropout masks multiply the outputs of hidden layers.
        """
        outputs, trace, step = [], ForwardPass([], [], [], masks), self.step
        for network, params in enumerate(self.networks):
            h, last = x, len(params) - 2
            inputs: list[Tensor] = []
            trace.inputs.append(inputs)
            if masks or step == 4:
                trace.norms.append([])
                trace.outputs.append([])
            for i in range(0, len(params), step):
                inputs.append(h)
                h = self.products.linear(h, params[i], params[i + 1])
                if i < last:
                    if step == 4:
                        before = h
                        h, *moments = torch.native_layer_norm(h, h.shape[1:], params[i + 2], params[i + 3], NORM_EPS)
                        trace.norms[network].append((before, *moments))
                    h = activate_(h, self.activation)
                    if masks:
                        trace.outputs[network].append(h)
                        h = h * masks[i // step][network]
            outputs.append(h)
        return torch.stack(outputs) if self.ensemble > 1 else outputs[0].unsqueeze(0), trace

    def backward(self, trace: ForwardPass, d_out: Tensor, to_weights: bool = True, to_inputs: bool = False) -> Tensor:
        """Write d loss/d weights into `grad`, given d loss/d output `[N, B, out]`.

        Without `to_weights`, write nothing. With `to_inputs`, return d loss/d input `[B, in]`, summed over the
        networks; otherwise return an empty tensor.
        """
        step = self.step
        d_input: Tensor | None = None
        parts = zip(self.networks, self.grads, trace.inputs, d_out.unbind(), strict=True)
        for network, (params, grads, inputs, d) in enumerate(parts):
            for i in range(len(params) - 2, -1, -step):
                layer = i // step
                h = inputs[layer]
                if to_weights:
                    self.products.weight_gradient(h, d, grads[i])
                    torch.sum(d, 0, out=grads[i + 1])
                if i > 0:
                    d = self.products.input_gradient(d, params[i])
                    if trace.masks:
                        h = trace.outputs[network][layer - 1]
                        d = d * trace.masks[layer - 1][network]
                    d = activate_backward_(d, h, self.activation)
                    if step == 4:
                        norm = trace.norms[network][layer - 1]
                        d = _norm_backward(d, norm, params[i - 2 : i], grads[i - 2 : i] if to_weights else ())
            if to_inputs:
                d_in = self.products.input_gradient(d, params[0])
                d_input = d_in if d_input is None else d_input.add_(d_in)
        return self.nothing if d_input is None else d_input

    def _widths(self) -> list[int]:
        return [shape[1] for shape in self.shapes[: -2 : self.step]]


def _views(flat: Tensor, shapes: Shapes, ensemble: int) -> list[list[Tensor]]:
    views = iter(torch.split_with_sizes(flat, [math.prod(shape) for shape in shapes] * ensemble))
    return [[next(views).view(shape) for shape in shapes] for _ in range(ensemble)]


def activate_(x: Tensor, activation: str) -> Tensor:
    """Apply an activation in place."""
    if activation == "relu":
        return torch.relu_(x)
    return torch.tanh_(x) if activation == "tanh" else torch.nn.functional.elu_(x)


def activate_backward_(d: Tensor, h: Tensor, activation: str) -> Tensor:
    """Multiply d loss/d output by the activation's derivative, in place if possible; `h` is the activation's output."""
    if activation == "relu":
        gradient: Tensor = torch.ops.aten.threshold_backward.grad_input(d, h, 0, grad_input=d)
        return gradient
    return d.mul_(1 - h * h) if activation == "tanh" else torch.where(h > 0, d, d * (h + 1))


def _norm_backward(d: Tensor, norm: Sequence[Tensor], params: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
    """Return d loss/d input of a layer norm, given d loss/d output `d`.

    `norm` is (input, mean, 1 / standard deviation) and `params` is (gain, bias). Write the gradients of gain and bias
    into `grads`, unless `grads` is empty.
    """
    needed = [True, bool(grads), bool(grads)]
    backward = torch.ops.aten.native_layer_norm_backward
    d_input, *d_params = backward(d, norm[0], d.shape[1:], norm[1], norm[2], *params, needed)
    for grad, d_param in zip(grads, d_params, strict=False):
        grad.copy_(d_param)
    gradient: Tensor = d_input
    return gradient
