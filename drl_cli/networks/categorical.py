"""Categorical critics with batch norm and weights of norm 1, for XQC."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from drl_cli.networks.batch_renorm import BatchRenorm, linear
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.modules import ACTIVATIONS
from drl_cli.optim.products import Products

ALWAYS = 2**62
"""A `warm_up` that never ends. With it, BatchRenorm is batch norm."""


class CategoricalCritics(nn.Module):
    """N critics, which map features `[B, F]` and actions `[B, A]` to logits `[N, B, K]` of K values of the return.

    `inputs` is F + A, and `outputs` is K. Batch norm normalises the inputs, and the outputs of hidden layers before the
    activation. The incoming weights of every unit have norm 1 after `scale_to_unit_norm`. Hidden layers and the batch
    norm of the inputs have no bias, because the next batch norm would cancel it.
    """

    products = Products()  # Params replaces this object, see `drl.MLP`

    def __init__(self, network: NetworkConfig, inputs: int, ensemble: int, momentum: float, outputs: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[network.activation]()
        widths = (inputs, *network.hidden)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(ensemble, *pair)) for pair in pairwise((*widths, outputs))
        )
        self.bias = nn.Parameter(torch.zeros(ensemble, outputs))
        self.norms = nn.ModuleList(BatchRenorm(ensemble, width, momentum, ALWAYS) for width in widths)
        self.norms[0].bias.requires_grad_(False)  # its gradient would be a rounding error, which Adam would scale up
        self.scale_to_unit_norm()

    def scale_to_unit_norm(self) -> None:
        """Scale the incoming weights of every hidden and output unit to norm 1."""
        with torch.no_grad():
            for weight in self.weights:
                weight.copy_(nn.functional.normalize(weight, dim=1))

    def forward(self, features: Tensor, action: Tensor, trains: bool = False) -> Tensor:
        x = torch.cat([features, action], -1)
        ensemble = len(self.bias)
        h = self.norms[0](x.expand(ensemble, *x.shape), trains)  # [N, B, F + A]
        *hidden_weights, last_weight = self.weights
        for weight, norm in zip(hidden_weights, self.norms[1:], strict=True):
            no_bias = torch.zeros_like(weight[:, 0])
            h = self.activation(norm(self.layer(h, weight, no_bias), trains))
        return self.layer(h, last_weight, self.bias)

    def layer(self, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return h weight + bias `[N, B, out]`; h is `[N, B, in]`, weight is `[N, in, out]`, and bias is `[N, out]`."""
        networks = zip(h.unbind(), weight.unbind(), bias.unbind(), strict=True)
        return torch.stack([linear(self.products, *network) for network in networks])
