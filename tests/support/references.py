"""Independent float64 networks of torch.nn, filled from an algorithm's flat parameters."""

import math
from itertools import pairwise

import torch

ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "elu": torch.nn.ELU}


def sequential(flat, sizes, activation):
    """An MLP of layers with these sizes, from flat parameters: weight `[in, out]`, then bias, layer by layer."""
    layers, flat = [], flat.double()
    for inputs, outputs in pairwise(sizes):
        layer = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
        weight, bias, flat = flat.split([inputs * outputs, outputs, len(flat) - (inputs + 1) * outputs])
        layer.weight.data, layer.bias.data = weight.view(inputs, outputs).t().clone(), bias.clone()
        layers += [layer, ACTIVATIONS[activation]()]
    return torch.nn.Sequential(*layers[:-1])


def value_prefix_of(flat, width, bins):
    """Return the parts of a value prefix from flat parameters: weights and biases of the LSTM, and the MLP."""
    shapes = [(4 * width, width), (4 * width, width), (4 * width,), (4 * width,)]
    *pieces, rest = flat.double().split([*(math.prod(shape) for shape in shapes), (width + 1) * (width + bins)])
    weights = [piece.view(shape).clone().requires_grad_() for piece, shape in zip(pieces, shapes, strict=True)]
    return weights, sequential(rest, (width, width, bins), "tanh")


def lstm_step(weights, x, state):
    """Return the next hidden and cell vectors `[2, Z]` of an LSTM (Hochreiter & Schmidhuber 1997) for one row."""
    hidden, cell = state
    of_x, of_hidden, bias_x, bias_hidden = weights
    enter, forget, change, show = (of_x @ x + bias_x + of_hidden @ hidden + bias_hidden).chunk(4)
    cell = forget.sigmoid() * cell + enter.sigmoid() * change.tanh()
    return torch.stack([show.sigmoid() * cell.tanh(), cell])


def flattened(*networks):
    """The parameters of such MLPs in one flat tensor."""
    layers = [layer for network in networks for layer in network if isinstance(layer, torch.nn.Linear)]
    return torch.cat([part for layer in layers for part in (layer.weight.t().flatten(), layer.bias)]).detach()
