"""MLP and Network: torch modules for algorithms, whose MLPs have all weights in one parameter."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp import FlatMLP, mlp_shapes, num_params
from drl_cli.networks.modules import ACTIVATIONS
from drl_cli.networks.torsos import torso
from drl_cli.optim.products import Products
from drl_cli.types import EnvSpec
from drl_cli.utils.deferred import present

FIRST_ITERATIONS = 15
"""The number of power iterations that spectral norm makes with the initial weights, as torch's `spectral_norm` does."""


class MLP(nn.Module):
    """An ensemble of N equally shaped multi-layer perceptrons. They map `[B, inputs]` to `[N, B, outputs]` in one call.

    With `ensemble=1`, the result is `[B, outputs]`. Instead of `[B, inputs]`, the inputs may be `[B, L, inputs]` and so
    on. All weights and biases are one parameter, `flat` `[size]`. `network` sets the hidden layers, the activation, the
    initial weights and the layer norm. Its other options have no effect here. The initial weights and biases of the
    last layer are multiplied by `last`. With `squashed`, the outputs go through tanh. `generator` (on the CPU) draws
    the initial weights. By default, torch's default generator draws the seed of a new generator, so that
    `torch.manual_seed` determines the weights, as for other modules.

    `norm` divides the weights of hidden layers in every forward pass. "weight" divides by the norm of each unit's
    incoming weights (Salimans and Kingma 2016, arXiv 1602.07868, without the learned length). "spectral" divides by the
    largest singular value of each weight matrix (Miyato et al. 2018, arXiv 1802.05957). One power iteration in each
    forward pass estimates this value from a singular vector, which is a buffer. Passes under torch.no_grad do not
    change the buffer.

    For dropout, the caller passes random masks, because several trainers have to draw the same masks:

        uniform = context.rand(len(x), mlp.dropout_size, generator)
        mlp(x, mlp.masks(uniform, rate))
    """

    products = Products()  # Params replaces this object by the products that `trainer.products` and `precision` choose

    def __init__(
        self,
        inputs: int,
        outputs: int,
        network: NetworkConfig,
        ensemble: int = 1,
        last: float = 1.0,
        norm: Literal["none", "weight", "spectral"] = "none",
        generator: torch.Generator | None = None,
        squashed: bool = False,
    ) -> None:
        super().__init__()
        self.squashed = squashed
        self.shapes = mlp_shapes(inputs, network.hidden, outputs, layer_norm=network.layer_norm)
        self.activation, self.ensemble = network.activation, ensemble
        self.flat = nn.Parameter(torch.empty(num_params(self.shapes, ensemble)))
        generator = generator or present.heads
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, ())))
        with torch.no_grad():
            self.on(self.flat.data).init(network.init, generator, last)
        self.norm = norm
        if norm == "spectral":
            for i in self._hidden():
                self.register_buffer(f"left{i}", torch.ones(ensemble, self.shapes[i][0]))
            with torch.enable_grad():  # because `normalised` does not change the buffers under torch.no_grad
                for _ in range(FIRST_ITERATIONS):
                    self.normalised(self.flat)

    def on(self, flat: Tensor, num: int | None = None) -> FlatMLP:
        """Return the first `num` networks (default: all) as a FlatMLP with the parameters `flat` of these networks."""
        ensemble = self.ensemble if num is None else num
        return FlatMLP(self.shapes, self.activation, flat, ensemble, self.products)

    def _hidden(self) -> list[int]:
        """Return the indices of the hidden layers' weights in `shapes`."""
        return [i for i, shape in enumerate(self.shapes[:-2]) if len(shape) == 2]

    def normalised(self, flat: Tensor) -> Tensor:
        """Normalise the weights of the hidden layers in the parameters `flat` `[size]`, as the option `norm` says.

        Return the changed parameters as a new tensor `[size]`, or `flat` itself with `norm="none"`. Gradients flow to
        `flat`. With "spectral", also update the singular vectors, except under torch.no_grad.
        """
        if self.norm == "none":
            return flat
        sizes = [math.prod(shape) for shape in self.shapes]
        pieces = list(torch.split(flat.view(self.ensemble, -1), sizes, 1))
        for i in self._hidden():
            weight = pieces[i].view(self.ensemble, *self.shapes[i])  # [N, in, out]
            if self.norm == "weight":
                pieces[i] = nn.functional.normalize(weight, dim=1).flatten(1)
                continue
            with torch.no_grad():  # one power iteration for the singular vectors of the largest singular value
                left = getattr(self, f"left{i}")  # [N, in]
                right = nn.functional.normalize(torch.einsum("ni,nio->no", left, weight), dim=1)
                new_left = nn.functional.normalize(torch.einsum("nio,no->ni", weight, right), dim=1)
            if torch.is_grad_enabled():  # so that evaluating a policy or a target network does not change it
                left.copy_(new_left)
            largest = torch.einsum("ni,nio,no->n", new_left, weight, right)  # singular value of each network
            pieces[i] = (weight / largest[:, None, None]).flatten(1)
        return torch.cat(pieces, 1).flatten()

    @property
    def dropout_size(self) -> int:
        """The number of hidden units of all networks. `masks` needs a random number for each of them in each row."""
        return self.ensemble * sum(self.shapes[i][1] for i in self._hidden())

    def masks(self, uniform: Tensor, rate: float) -> list[Tensor]:
        """Return a dropout mask `[N, B, width]` for each hidden layer. `forward` takes them as an argument.

        `uniform` `[B, dropout_size]` has random numbers in [0, 1). `rate` is the probability that a unit is dropped.
        """
        return self.on(self.flat.detach()).masks(uniform, rate)

    def forward(self, x: Tensor, masks: Sequence[Tensor] = (), first: int | None = None) -> Tensor:
        """Return the outputs for inputs `[B, inputs]`: `[N, B, outputs]`, or `[B, outputs]` for one network.

        Dropout masks multiply the outputs of hidden layers. With `first`, only this number of networks, from the start
        of the ensemble, are evaluated.
        """
        out = self.evaluate(self.flat if self.norm == "none" else self.normalised(self.flat), x, masks, first)
        return out.tanh() if self.squashed else out

    def evaluate(self, flat: Tensor, x: Tensor, masks: Sequence[Tensor] = (), first: int | None = None) -> Tensor:
        """Return what `forward` returns, but with the parameters `flat` `[size]`. Gradients flow to `flat` and `x`."""
        num = self.ensemble if first is None else first
        batch_shape = x.shape[:-1]
        if len(batch_shape) > 1:
            x = x.flatten(0, -2)
        flat = flat if num == self.ensemble else flat[: num_params(self.shapes, num)]
        with torch.autocast(x.device.type, enabled=False):  # because `products` decides what is rounded to bfloat16
            out = self.on(flat, num).forward(x, masks)
        if len(batch_shape) > 1:
            out = out.reshape(out.shape[0], *batch_shape, -1)
        return out.squeeze(0) if num == 1 else out


class Critic(MLP):
    """MLPs that map features `[B, features]` and an action `[B, actions]` to values `[B]`.

    With `ensemble` = N, which may be 1, there are N MLPs, and the values are `[N, B]`. With `outputs` = K > 1, the
    values are `[B, K]` or `[N, B, K]`.
    """

    def __init__(
        self, features: int, actions: int, network: NetworkConfig, ensemble: int | None = None, outputs: int = 1
    ) -> None:
        super().__init__(features + actions, outputs, network, ensemble=ensemble or 1)
        self.has_one_output, self.is_ensemble_of_one = outputs == 1, ensemble == 1

    def forward(  # type: ignore[override]
        self, features: Tensor, action: Tensor, masks: Sequence[Tensor] = (), first: int | None = None
    ) -> Tensor:
        """Return the values. `masks` and `first` are the arguments of `MLP.forward`; with `first=1`, they are `[B]`."""
        values = super().forward(torch.cat([features, action], -1), masks, first)
        values = values.squeeze(-1) if self.has_one_output else values
        return values.unsqueeze(0) if self.is_ensemble_of_one else values


class Embedding(MLP):
    """An MLP whose outputs go through layer norm without learned parameters, and then through the activation."""

    def forward(self, x: Tensor, masks: Sequence[Tensor] = (), first: int | None = None) -> Tensor:
        out = super().forward(x, masks, first)
        normalised = nn.functional.layer_norm(out, out.shape[-1:])
        embedding: Tensor = ACTIVATIONS[self.activation]()(normalised)
        return embedding


class Scalar(nn.Module):
    """One learned number, such as the logarithm of a temperature. A call returns the number, `[]`."""

    def __init__(self, first: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(first, dtype=torch.float32))

    def forward(self) -> Tensor:
        return self.value


class Vector(nn.Module):
    """`size` learned numbers, such as log standard deviations. A call returns them, `[size]`.

    `first` has the initial numbers, or is the initial value of all.
    """

    def __init__(self, size: int, first: float | Sequence[float] = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(first, dtype=torch.float32).expand(size).clone())

    def forward(self) -> Tensor:
        return self.value


class Network(nn.Module):
    """A torso and an MLP, for an actor or a critic.

    The inputs of the MLP are the torso's features of the observation and, with `actions` > 0, an action `[B, actions]`.
    The result is `[B, outputs]`. With `ensemble` = N > 1, there are N MLPs after one torso, and the result is
    `[N, B, outputs]`. `last` multiplies the initial weights of the last layer, as in MLP.
    """

    def __init__(
        self,
        network: NetworkConfig,
        spec: EnvSpec,
        outputs: int,
        actions: int = 0,
        ensemble: int = 1,
        last: float = 1.0,
    ) -> None:
        super().__init__()
        self.torso = torso(network, spec)
        size: int = self.torso.size  # type: ignore[assignment]
        self.mlp = MLP(size + actions, outputs, network, ensemble=ensemble, last=last)

    def forward(
        self, obs: Any, action: Tensor | None = None, masks: Sequence[Tensor] = (), first: int | None = None
    ) -> Tensor:  # Any: see torso
        """Return the outputs for observations `[B, ...]` and, with `actions` > 0, an action `[B, actions]`.

        `masks` and `first` are arguments of `MLP.forward`.
        """
        x = self.torso(obs)
        if action is not None:
            x = torch.cat([x, action], -1)
        out: Tensor = self.mlp(x, masks, first)
        return out
