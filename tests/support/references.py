"""Independent float64 networks of torch.nn, filled from an algorithm's flat parameters."""

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


def flattened(*networks):
    """The parameters of such MLPs in one flat tensor."""
    layers = [layer for network in networks for layer in network if isinstance(layer, torch.nn.Linear)]
    return torch.cat([part for layer in layers for part in (layer.weight.t().flatten(), layer.bias)]).detach()
