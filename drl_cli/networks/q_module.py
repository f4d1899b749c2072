"""The trainer's Q network as a torch module, and the noise of its weights."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from drl_cli.networks.mlp_module import MLP
from drl_cli.networks.q_network import QShape, factorised

SIGMA = 0.5
"""The initial sigma of every weight is SIGMA / sqrt(number of the layer's inputs) (Fortunato et al., section 3.2)."""


class QNetwork(MLP):
    """A Q network, which maps features `[N, features]` to `atoms` numbers for each action, `[N, actions * atoms]`.

    In a noisy network, the parameters are the means of the weights. In a dueling network, the weights that would
    connect the two streams start at 0. They stay 0 if `zero_between_streams_` sets their gradients to 0.
    """

    def __init__(self, shape: QShape, generator: torch.Generator | None = None) -> None:
        network = dataclasses.replace(shape.network, hidden=shape.hidden)
        # In a dueling network, half of the last layer's weights are 0. The other weights start sqrt(2) times as large,
        # as in a layer with half as many inputs.
        last = 2**0.5 if shape.dueling else 1.0
        super().__init__(shape.features, shape.outputs, network, last=last, generator=generator)
        self.shape = shape
        self.zero_between_streams_(self.flat.data)

    def forward(  # type: ignore[override]
        self, x: Tensor, masks: Sequence[Tensor] = (), sigma: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Return the outputs `[N, actions * atoms]` for features `x` `[N, features]`.

        With `sigma` and `noise`, both `[size]`, the network uses the parameters mean + sigma * noise. Dropout masks
        multiply the outputs of hidden layers.
        """
        flat = self.flat if sigma is None or noise is None else torch.addcmul(self.flat, sigma, noise)
        out = self.evaluate(flat, x, masks)
        joined: Tensor = self.shape.joined(out) if self.shape.dueling else out
        return joined

    def first_sigma(self) -> Tensor:
        """Return the initial sigma of each parameter of a noisy network, `[size]`. It is 0 for layer norm."""
        pieces, sigma = [], 0.0
        for i, shape in enumerate(self.shapes):
            if len(shape) == 2:  # a weight, whose sigma is also the sigma of the bias that follows
                sigma = SIGMA / shape[0] ** 0.5
            is_norm = len(shape) == 1 and len(self.shapes[i - 1]) == 1
            pieces.append(torch.full((math.prod(shape),), 0.0 if is_norm else sigma))
        return self.zero_between_streams_(torch.cat(pieces))

    def draw_noise(self, normals: Tensor) -> Tensor:
        """Return n samples of the noise of all parameters, `[n, size]`, from standard normals `[n, noise_size]`."""
        pieces = factorised(self.shapes, normals)
        return self.zero_between_streams_(torch.cat([piece.flatten(1) for piece in pieces], 1))

    def zero_between_streams_(self, flat: Tensor) -> Tensor:
        """Set the entries of the weights that would connect the two dueling streams to 0 in place; return `flat`.

        `flat` `[..., size]` has a number for each parameter, such as its gradient. Without dueling, nothing changes.
        """
        if self.shape.dueling:
            weight_shape, (num_outputs,) = self.shapes[-2:]  # of the last layer, which ends with its bias
            begin = flat.shape[-1] - num_outputs - math.prod(weight_shape)
            weight = flat[..., begin:-num_outputs]
            self.shape.zero_between_streams_(weight.view(*flat.shape[:-1], *weight_shape))
        return flat
