"""Categorical critics with batch norm and weights of norm 1, for XQC."""

from itertools import pairwise

from drl_cli.networks.batch_renorm import BatchRenorm, linear
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.products import Products
from drl_cli.utils.deferred import nn, torch
from drl_cli.utils.lazy import Tensor

FOREVER = 2**62
"""A `warm_up` that never ends. With it, BatchRenorm is batch norm."""


class CategoricalCritics(nn.Module):
    """N critics, which map features `[B, F]` and actions `[B, A]` to logits `[N, B, K]` of K values of the return.

    `inputs` is F + A, `ensemble` is N, and `outputs` is K. Batch norm normalises the inputs, and the outputs of hidden
    layers before the activation. The incoming weights of every unit have norm 1 at first and after each call of
    `scale_to_unit_norm`. Hidden layers have no bias, and the bias of the inputs' batch norm stays 0, because the next
    batch norm would cancel it. BatchRenorm describes `momentum` and `batch_statistics`.
    """

    products = Products()  # Params replaces this object, see `drl.MLP`

    def __init__(self, network: NetworkConfig, inputs: int, *, ensemble: int, momentum: float, outputs: int) -> None:
        super().__init__()
        self.activation = getattr(nn.functional, network.activation)
        widths = (inputs, *network.hidden)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(ensemble, *pair)) for pair in pairwise((*widths, outputs))
        )
        self.bias = nn.Parameter(torch.zeros(ensemble, outputs))
        self.norms = nn.ModuleList(BatchRenorm(ensemble, width, momentum=momentum, warm_up=FOREVER) for width in widths)
        self.norms[0].bias.requires_grad_(False)  # its gradient would be a rounding error, which Adam would scale up
        self.scale_to_unit_norm()

    def scale_to_unit_norm(self) -> None:
        """Scale the incoming weights of every hidden and output unit to norm 1."""
        with torch.no_grad():
            for weight in self.weights:
                weight.copy_(nn.functional.normalize(weight, dim=1))  # [N, in, out]

    def forward(self, features: Tensor, action: Tensor, *, batch_statistics: bool = False) -> Tensor:
        x = torch.cat([features, action], -1)
        ensemble = len(self.bias)
        norm_of_inputs, *norms_of_hidden = self.norms
        h = norm_of_inputs(x.expand(ensemble, *x.shape), batch_statistics=batch_statistics)  # [N, B, F + A]
        *hidden_weights, last_weight = self.weights
        for weight, norm in zip(hidden_weights, norms_of_hidden, strict=True):
            zeros = torch.zeros_like(weight[:, 0])  # [N, out], in place of the bias that `linear` needs
            h = self.activation(norm(linear(self.products, h, weight, zeros), batch_statistics=batch_statistics))
        return linear(self.products, h, last_weight, self.bias)
