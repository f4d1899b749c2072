"""Networks with batch norm and weights of norm 1, for FlashSAC."""

from __future__ import annotations

from typing import Any

from drl_cli.networks.batch_renorm import BatchRenorm, linear
from drl_cli.networks.categorical import FOREVER
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.torsos import torso
from drl_cli.optim.products import Products
from drl_cli.types import EnvSpec
from drl_cli.utils.deferred import nn, torch
from drl_cli.utils.lazy import Tensor

EXPANSION = 4
"""A block has so many times more units inside than at its ends."""


class UnitNetworks(nn.Module):
    """N networks, which map inputs `[B, inputs]` to outputs `[N, B, outputs]`.

    Batch norm of the inputs, a linear layer, `blocks` residual blocks, RMS norm, and a linear layer. Each block is
    linear (to 4 times `width`), batch norm, ReLU, linear (back to `width`), batch norm. Layers have no bias. After
    `scale_to_unit_norm`, the incoming weights of each unit have norm 1, and gain and bias of a batch norm with d units
    together have norm sqrt(d). BatchRenorm describes `momentum` and `batch_statistics`.
    """

    products = Products()  # Params replaces this object, see `drl.MLP`

    def __init__(self, inputs: int, outputs: int, width: int, blocks: int, *, ensemble: int, momentum: float) -> None:
        super().__init__()
        inside = EXPANSION * width
        shapes = [(inputs, width), *(shape for _ in range(blocks) for shape in ((width, inside), (inside, width)))]
        widths = [inputs, *(out for _, out in shapes[1:])]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(ensemble, *s)) for s in (*shapes, (width, outputs)))
        self.norms = nn.ModuleList(BatchRenorm(ensemble, w, momentum=momentum, warm_up=FOREVER) for w in widths)
        self.scale_to_unit_norm()

    def scale_to_unit_norm(self) -> None:
        """Scale the incoming weights of every unit, and gain and bias of every batch norm."""
        with torch.no_grad():
            for weight in self.weights:
                weight.copy_(nn.functional.normalize(weight, dim=1))  # [N, in, out]
            for norm in self.norms:
                assert isinstance(norm, BatchRenorm)
                both = torch.cat([norm.gain, norm.bias], -1)  # [N, 1, 2 d]
                factor = norm.gain.shape[-1] ** 0.5 / both.norm(dim=-1, keepdim=True)
                norm.gain.mul_(factor)
                norm.bias.mul_(factor)

    def forward(self, x: Tensor, *, batch_statistics: bool = False) -> Tensor:
        first, *blocks, last = self.weights
        norm_of_inputs, *norms = self.norms
        h = self.layer(norm_of_inputs(x.expand(len(first), *x.shape), batch_statistics=batch_statistics), first)
        for i in range(0, len(blocks), 2):
            inner = norms[i](self.layer(h, blocks[i]), batch_statistics=batch_statistics).relu()
            h = h + norms[i + 1](self.layer(inner, blocks[i + 1]), batch_statistics=batch_statistics)
        rms = (h.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return self.layer(h / rms, last)

    def layer(self, h: Tensor, weight: Tensor) -> Tensor:
        """Return h weight `[N, B, out]`; h is `[N, B, in]`, and weight is `[N, in, out]`."""
        if not self.training:  # a policy, whose exported graph may not depend on the number of rows
            return torch.bmm(h, weight)
        zeros = torch.zeros_like(weight[:, 0])  # [N, out]
        return linear(self.products, h, weight, zeros)


class UnitActor(nn.Module):
    """A torso and one network, which maps observations to outputs `[B, outputs]`."""

    def __init__(self, network: NetworkConfig, spec: EnvSpec, outputs: int, momentum: float) -> None:
        super().__init__()
        self.torso = torso(network, spec)
        size: Any = self.torso.size
        width, blocks = max(1, network.hidden[0] // 2), len(network.hidden)
        self.net = UnitNetworks(size, outputs, width, blocks, ensemble=1, momentum=momentum)

    def scale_to_unit_norm(self) -> None:
        """Scale the weights of the network as `UnitNetworks` does."""
        self.net.scale_to_unit_norm()

    def forward(self, obs: Tensor | dict[str, Tensor], *, batch_statistics: bool = False) -> Tensor:
        out: Tensor = self.net(self.torso(obs), batch_statistics=batch_statistics).squeeze(0)
        return out


class UnitCritics(nn.Module):
    """A torso and two networks, which map observations and actions `[B, A]` to outputs `[2, B, outputs]`."""

    def __init__(self, network: NetworkConfig, spec: EnvSpec, outputs: int, momentum: float) -> None:
        super().__init__()
        self.torso = torso(network, spec)
        size: Any = self.torso.size
        inputs, width, blocks = size + spec.action.size, network.hidden[0], len(network.hidden)
        self.net = UnitNetworks(inputs, outputs, width, blocks, ensemble=2, momentum=momentum)

    def scale_to_unit_norm(self) -> None:
        """Scale the weights of the network as `UnitNetworks` does."""
        self.net.scale_to_unit_norm()

    def forward(self, obs: Tensor | dict[str, Tensor], action: Tensor, *, batch_statistics: bool = False) -> Tensor:
        out: Tensor = self.net(torch.cat([self.torso(obs), action], -1), batch_statistics=batch_statistics)
        return out


class ReturnScale(nn.Module):
    """The divisor of rewards: max(standard deviation of discounted returns, largest discounted return / `largest`).

    A call with discounted returns `[B]` updates the statistics, as an average over about 100 calls, and returns the
    divisor `[]`. It is 1 as long as all returns are 0.
    """

    moments: Tensor

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.largest = largest
        self.register_buffer("moments", torch.zeros(4))  # number of calls, mean, mean square, largest size

    def forward(self, returns: Tensor) -> Tensor:
        with torch.no_grad():
            calls, mean, square, most = self.moments.unbind()
            share = (1.0 / (calls + 1.0)).clamp(min=0.01)
            new = torch.stack([
                calls + 1.0,
                mean.lerp(returns.mean(), share),
                square.lerp(returns.square().mean(), share),
                torch.maximum(most, returns.abs().amax()),
            ])  # fmt: skip
            self.moments.copy_(new)
            std = (new[2] - new[1].square()).clamp(min=0.0).sqrt()
            scale = torch.maximum(std, new[3] / self.largest)
            return torch.where(scale > 0.0, scale, 1.0)
