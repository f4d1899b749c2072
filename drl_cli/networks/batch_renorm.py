"""Critics with batch renormalisation, for CrossQ."""

from __future__ import annotations

from itertools import pairwise

from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.products import Products
from drl_cli.utils.deferred import nn, torch
from drl_cli.utils.lazy import Tensor


class BatchRenorm(nn.Module):
    """Batch renormalisation of the features `[N, B, width]` of N networks (Ioffe 2017, arXiv 1702.03275, algorithm 1).

    With `batch_statistics`, the mean and the standard deviation of the batch normalise the features. The factors r and
    d then correct the result toward the running statistics. Their ranges are [1 / r_max, r_max] and [-d_max, d_max],
    and no gradient flows through them. During the first `warm_up` batches, r = 1 and d = 0, as in batch norm. Each
    batch moves the running statistics by the share `momentum` to its own. Without `batch_statistics`, the running
    statistics normalise the features. In both cases, a learned gain and bias follow.
    """

    mean: Tensor
    std: Tensor
    batches: Tensor

    def __init__(
        self, ensemble: int, width: int, *, momentum: float, warm_up: int, r_max: float = 3.0, d_max: float = 5.0
    ) -> None:
        super().__init__()
        self.momentum, self.warm_up, self.r_max, self.d_max, self.eps = momentum, warm_up, r_max, d_max, 1e-3
        self.gain, self.bias = (nn.Parameter(torch.full((ensemble, 1, width), value)) for value in (1.0, 0.0))
        self.register_buffer("mean", torch.zeros(ensemble, 1, width))
        self.register_buffer("std", torch.ones(ensemble, 1, width))
        self.register_buffer("batches", torch.zeros(1))  # the number of batches seen

    def forward(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        if not batch_statistics:
            scale = self.gain / self.std
            return torch.addcmul(self.bias - self.mean * scale, x, scale)  # (x - mean) / std * gain + bias
        with torch.no_grad():
            mean = x.mean(1, keepdim=True)
            std = ((x - mean).square().mean(1, keepdim=True) + self.eps).sqrt()
            is_warm = self.batches >= self.warm_up  # a tensor, because a recorded update cannot branch
            r = torch.where(is_warm, (std / self.std).clamp(1 / self.r_max, self.r_max), 1.0)
            d = torch.where(is_warm, ((mean - self.mean) / self.std).clamp(-self.d_max, self.d_max), 0.0)
            self.mean.lerp_(mean, self.momentum)
            self.std.lerp_(std, self.momentum)
            self.batches.add_(1.0)
        return renormalised(x, r * self.gain, d * self.gain + self.bias, self.eps)


def renormalised(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return batch norm of x: (x - mean) / std * gain + bias, with the mean and standard deviation of the batch.

    x and the result are `[N, B, width]`, and gain and bias are `[N, 1, width]`. `eps` is added to the variance.
    """
    if torch.compiler.is_compiling():  # torch.func, which makes the gradients then, cannot use Normalised
        centered = x - x.mean(1, keepdim=True)
        return centered * (gain / (centered.square().mean(1, keepdim=True) + eps).sqrt()) + bias
    from drl_cli.networks.nodes import Normalised  # not at the top, because nodes.py imports torch

    normalised: Tensor = Normalised.apply(x, gain, bias, eps)  # type: ignore[no-untyped-call]
    return normalised


class RenormCritics(nn.Module):
    """N critics, which map features `[B, F]` and actions `[B, A]` to action values `[N, B]`.

    Batch renormalisation normalises the inputs, and the outputs of hidden layers after the activation. `inputs` is
    F + A, and `ensemble` is N. BatchRenorm describes `momentum`, `warm_up` and `batch_statistics`.
    """

    products = Products()  # Params replaces this object, see `drl.MLP`

    def __init__(self, network: NetworkConfig, inputs: int, *, ensemble: int, momentum: float, warm_up: int) -> None:
        super().__init__()
        self.activation = getattr(nn.functional, network.activation)
        widths = (inputs, *network.hidden)
        layers = list(pairwise((*widths, 1)))  # (inputs, outputs) of each layer
        self.weights = nn.ParameterList(_uniform(ensemble, fan_in, out, fan_in=fan_in) for fan_in, out in layers)
        self.biases = nn.ParameterList(_uniform(ensemble, 1, out, fan_in=fan_in) for fan_in, out in layers)
        self.norms = nn.ModuleList(BatchRenorm(ensemble, width, momentum=momentum, warm_up=warm_up) for width in widths)

    def forward(self, features: Tensor, action: Tensor, *, batch_statistics: bool = False) -> Tensor:
        x = torch.cat([features, action], -1)
        ensemble = len(self.weights[0])
        norm_of_inputs, *norms_of_hidden = self.norms
        h = norm_of_inputs(x.expand(ensemble, *x.shape), batch_statistics=batch_statistics)  # [N, B, F + A]
        for weight, bias, norm in zip(self.weights, self.biases, [*norms_of_hidden, None], strict=True):
            h = linear(self.products, h, weight, bias.squeeze(1))
            if norm is not None:  # the last layer has no norm
                h = norm(self.activation(h), batch_statistics=batch_statistics)
        values: Tensor = h.squeeze(-1)
        return values


def linear(products: Products, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `x weight + bias` of N networks, `[N, B, out]`, with the matrix products of `products`.

    x is `[N, B, in]`, weight is `[N, in, out]`, and bias is `[N, out]`.
    """
    networks = zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)
    with torch.autocast(x.device.type, enabled=False):  # because `products` decides what is rounded to bfloat16
        return torch.stack([products.linear(*network) for network in networks])


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """Return a parameter drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    return nn.Parameter((2 * torch.rand(shape) - 1) / fan_in**0.5)
