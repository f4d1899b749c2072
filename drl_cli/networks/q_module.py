"""The trainer's Q network as torch modules: the means of the weights, and the sigmas of noisy weights."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from drl_cli.networks.mlp_module import MLP
from drl_cli.networks.q_network import QShape, factorised

SIGMA = 0.5
"""The initial sigma of every weight is SIGMA / sqrt(number of the layer's inputs) (Fortunato et al., section 3.2)."""


class QNetwork(MLP):
    """The Q network of a QShape, `[N, features] -> [N, actions * atoms]`. Its parameters are the means of the weights.

    The weights between dueling streams are 0 and get no gradient.
    """

    def __init__(self, shape: QShape, device: torch.device) -> None:
        # In a dueling network, half of the last layer's weights are 0, so the other weights start sqrt(2) times larger.
        network, last = dataclasses.replace(shape.network, hidden=shape.hidden), 2**0.5 if shape.dueling else 1.0
        super().__init__(shape.features, shape.outputs, network, last=last)
        used = used_weights(shape)
        self.flat.data.mul_(used)
        self.shape, self.used = shape, used.to(device)  # not a buffer, because policies need no copy

    def forward(  # type: ignore[override]
        self, x: Tensor, masks: Sequence[Tensor] = (), shift: Tensor | None = None
    ) -> Tensor:
        """Return the outputs. `masks` are dropout masks; `shift` `[size]`, made by Sigma, is added to the weights."""
        flat: Tensor = self.flat
        if self.shape.dueling and torch.is_grad_enabled():
            flat = flat * self.used
        out = self.evaluate(flat if shift is None else flat + shift, x, masks)
        joined: Tensor = self.shape.joined(out) if self.shape.dueling else out
        return joined


class Sigma(nn.Module):
    """The sigmas of a noisy Q network, one for each of its parameters and in the same order."""

    def __init__(self, shape: QShape) -> None:
        super().__init__()
        pieces, inputs = [], 0
        for before, own in pairwise([(), *shape.shapes]):
            inputs = own[0] if len(own) == 2 else inputs
            has_noise = len(own) == 2 or len(before) == 2  # else it is a vector of layer norm
            pieces.append(torch.full(own, SIGMA / inputs**0.5 if has_noise else 0.0).flatten())
        self.flat = nn.Parameter(torch.cat(pieces) * used_weights(shape))

    def forward(self, noise: Tensor) -> Tensor:
        """Return what the noise `[size]` adds to the network's parameters."""
        return self.flat * noise


def used_weights(shape: QShape) -> Tensor:
    """Return 1 for each parameter, `[size]`, but 0 for the weights between dueling streams."""
    ones = [torch.ones(each) for each in shape.shapes]
    if shape.dueling:
        shape.zero_between_streams_(ones[-2])
    return torch.cat([each.flatten() for each in ones])


def draw_noise(shape: QShape, normals: Tensor) -> Tensor:
    """Return noise of all parameters, `[n, size]`, made from standard normal samples `[n, noise_size]`."""
    pieces = factorised(shape.shapes, normals)
    if shape.dueling:
        shape.zero_between_streams_(pieces[-2])
    return torch.cat([piece.flatten(1) for piece in pieces], 1)
