"""The torch forms of Q networks: drl.QNetwork and drl.ImplicitQNetwork."""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp_module import MLP
from drl_cli.networks.q_network import QShape, cosines, factorised, implicit_shapes

SIGMA = 0.5
"""The initial sigma of every weight is SIGMA / sqrt(number of the layer's inputs) (Fortunato et al., section 3.2)."""
Noise = Mapping[str, Tensor]
"""The noise `[size]` of the weights of each noisy part, by the name of the part."""


class QLayers(MLP):
    """The layers of a Q network, which map features `[N, features]` to outputs `[N, actions * atoms]`.

    In a noisy network, the parameters are the means of the weights. In a dueling network, the weights that would
    connect the two streams start at 0, and their gradients are 0.
    """

    def __init__(self, shape: QShape) -> None:
        network = dataclasses.replace(shape.network, hidden=shape.hidden)
        # In a dueling network, half of the last layer's weights are 0. The other weights start sqrt(2) times as large,
        # as in a layer with half as many inputs.
        super().__init__(shape.features, shape.outputs, network, last=2**0.5 if shape.dueling else 1.0)
        self.shape = shape
        self._keep_zeros_(self.flat.data)
        self.flat.register_hook(self._keep_zeros_)  # type: ignore[no-untyped-call]  # of the gradient

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

    def draw_noise(self, normals: Tensor) -> Tensor:
        """Return n samples of the noise of all parameters, `[n, size]`, from standard normals `[n, noise_size]`."""
        pieces = factorised(self.shapes, normals)
        return self._keep_zeros_(torch.cat([piece.flatten(1) for piece in pieces], 1))

    def _keep_zeros_(self, flat: Tensor) -> Tensor:
        """Set the entries of the weights that would connect the two dueling streams to 0 in place; return `flat`.

        `flat` `[..., size]` has a number for each parameter, such as its gradient. Without dueling, nothing changes.
        """
        if self.shape.dueling:
            weight_shape, (num_outputs,) = self.shapes[-2:]  # of the last layer, which ends with its bias
            begin = flat.shape[-1] - num_outputs - math.prod(weight_shape)
            weight = flat[..., begin:-num_outputs]
            self.shape.zero_between_streams_(weight.view(*flat.shape[:-1], *weight_shape))
        return flat


class Sigma(nn.Module):
    """The sigmas of noisy layers, `flat` `[size]`: one for each parameter, which is 0 for those of layer norm."""

    def __init__(self, layers: QLayers) -> None:
        super().__init__()
        pieces, sigma = [], 0.0
        for i, shape in enumerate(layers.shapes):
            if len(shape) == 2:  # a weight, whose sigma is also the sigma of the bias that follows
                sigma = SIGMA / shape[0] ** 0.5
            is_norm = len(shape) == 1 and len(layers.shapes[i - 1]) == 1
            pieces.append(torch.full((math.prod(shape),), 0.0 if is_norm else sigma))
        self.flat = nn.Parameter(layers._keep_zeros_(torch.cat(pieces)))


class _QGroup:
    """A Q network that consists of `parts`, which `Params` holds by their names: QLayers, and the Sigma of noisy ones.

    `sigmas` has the name of the Sigma by the name of the QLayers.
    """

    def __init__(self, shapes: Mapping[str, QShape], sigma_name: str) -> None:
        layers = {name: QLayers(shape) for name, shape in shapes.items()}
        self.sigmas = {name: sigma_name.format(name) for name, shape in shapes.items() if shape.noisy}
        self.parts: dict[str, Any] = layers | {sigma: Sigma(layers[name]) for name, sigma in self.sigmas.items()}

    def on(self, nets: Any) -> Self:  # Any: drl_cli.optim.gradients.Nets
        """Return a copy of this network that uses the parts in `nets`."""
        other = copy.copy(self)
        other.parts = {name: getattr(nets, name) for name in self.parts}
        return other

    def noise(self, num: int, generator: torch.Generator) -> list[Noise | None]:
        """Draw `num` samples of the noise of all weights, each for one call; None if no weight is noisy.

        Trainers with equal generators draw the same noise, because it belongs to the weights and not to a row.
        """
        if not self.sigmas:
            return [None] * num
        sizes = [self.parts[name].shape.noise_size for name in self.sigmas]
        device = next(iter(self.parts.values())).flat.device
        normals = torch.randn((num, sum(sizes)), generator=generator, device=device)
        drawn = [
            self.parts[name].draw_noise(part)
            for name, part in zip(self.sigmas, torch.split(normals, sizes, 1), strict=True)
        ]
        return [dict(zip(self.sigmas, sample, strict=True)) for sample in zip(*drawn, strict=True)]

    def _evaluate(
        self, name: str, x: Tensor, noise: Noise | np.random.Generator | None, masks: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the outputs `[N, outputs]` of the part `name` for inputs `x` `[N, inputs]`."""
        layers: QLayers = self.parts[name]
        if noise is None or name not in self.sigmas:
            return layers(x, masks)  # type: ignore[no-any-return]
        if isinstance(noise, np.random.Generator):  # in a worker
            normals = torch.from_numpy(noise.standard_normal((1, layers.shape.noise_size), np.float32))
            noise = {name: layers.draw_noise(normals)[0]}
        out: Tensor = layers(x, masks, self.parts[self.sigmas[name]].flat, noise[name])
        return out


class QNetwork(_QGroup):
    """A Q network for the function `networks`: an MLP from features `[N, features]` to values `[N, actions]`.

    With `outputs` = K, it has K outputs for each action, `[N, actions, K]`. `dueling` and `noisy` are explained in
    `drl_cli.networks.q_network`. Its layers are the part `online` of `Params`, and the sigmas of noisy weights the part
    `sigma`.
    """

    def __init__(
        self,
        features: int,
        actions: int,
        network: NetworkConfig,
        outputs: int | None = None,
        dueling: bool = False,
        noisy: bool = False,
    ) -> None:
        atoms = 1 if outputs is None else outputs
        shape = QShape(network=network, features=features, actions=actions, atoms=atoms, dueling=dueling, noisy=noisy)
        self.actions, self.outputs = actions, outputs
        super().__init__({"online": shape}, "sigma")

    def __call__(
        self, x: Tensor, noise: Noise | np.random.Generator | None = None, masks: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the outputs for features `x` `[N, features]`.

        `noise` is a sample of the method `noise`, or in a worker the generator that draws it. `masks` are of dropout.
        """
        out = self._evaluate("online", x, noise, masks)
        return out if self.outputs is None else out.view(-1, self.actions, self.outputs)

    def weighted(self, x: Tensor, weights: Any, noise: Noise | np.random.Generator | None = None) -> Tensor:
        """Return the sums `[N, actions]` of the K outputs of each action, with `weights` `[K]`."""
        return self(x, noise) @ torch.as_tensor(weights)


class ImplicitQNetwork(_QGroup):
    """An implicit quantile network for the function `networks`: it returns the quantiles of returns at any fractions.

    Its parts in `Params` are those of `drl_cli.networks.q_network`, and `trunk_sigma` and `online_sigma` if noisy.
    """

    def __init__(
        self, features: int, actions: int, network: NetworkConfig, dueling: bool = False, noisy: bool = False
    ) -> None:
        self.activation, self.actions = network.activation, actions
        super().__init__(implicit_shapes(network, features, actions, dueling=dueling, noisy=noisy), "{}_sigma")

    def __call__(
        self,
        x: Tensor,
        fraction: Any,
        noise: Noise | np.random.Generator | None = None,
        masks: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the quantiles `[N, actions, K]` of all actions' returns for features `x` `[N, features]` (eq. 4).

        The K quantiles are at the fractions `fraction`, `[N, K]`, or `[K]` if all rows have the same fractions.
        """
        angles = cosines(torch.as_tensor(fraction))  # [N, K, cosines] or [K, cosines]
        embedded = self._evaluate("embedding", angles.flatten(0, -2), noise).relu()
        embedded = embedded.view(*angles.shape[:-1], -1)  # [N, K, W] or [K, W], with W features
        hidden = x
        if "trunk" in self.parts:
            activation = getattr(nn.functional, self.activation)
            hidden = activation(self._evaluate("trunk", x, noise))  # [N, W]
        product = hidden.unsqueeze(1) * embedded  # [N, K, W]
        quantiles = self._evaluate("online", product.flatten(0, 1), noise, masks)  # [N K, A]
        return quantiles.view(-1, angles.shape[-2], self.actions).mT  # [N, K, A] -> [N, A, K]
