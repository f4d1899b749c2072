"""Q networks: MLPs from features to the values of each action, optionally with dueling streams and noisy weights.

Dueling (Wang et al. 2016, arXiv 1511.06581, eq. 9): the last hidden layer is twice as wide. The first half of its units
feeds only the state's value, and the second half only the advantages. All other weights of the last layer stay 0.

Noisy (Fortunato et al. 2018, arXiv 1706.10295, section 3): every weight is mean + sigma * noise, with factorised noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.mlp import FlatMLP, ForwardPass, Shapes, mlp_numpy, mlp_shapes
from drl_cli.optim.group import Refused
from drl_cli.optim.params import FlatPart
from drl_cli.types import Array
from drl_cli.utils.lazy import Tensor, torch

SIGMA = 0.5
"""The initial sigma of every weight is SIGMA / sqrt(number of the layer's inputs) (section 3.2)."""


@dataclass(frozen=True)
class QShape:
    """The shape of a network with `atoms` outputs for each action: `[N, features]` -> `[N, actions * atoms]`."""

    network: NetworkConfig
    features: int
    actions: int
    atoms: int = 1
    dueling: bool = False
    noisy: bool = False

    @property
    def shapes(self) -> Shapes:
        """The shapes of the MLP's parameters. Raise Refused if `dueling` is True but there is no hidden layer."""
        hidden, layer_norm = self.network.hidden, self.network.layer_norm
        if not self.dueling:
            return mlp_shapes(self.features, hidden, self.actions * self.atoms, layer_norm)
        if not hidden:
            raise Refused("algo.dueling=true needs a hidden layer to split; say network.hidden=[256]")
        hidden = (*hidden[:-1], 2 * hidden[-1])
        return mlp_shapes(self.features, hidden, (1 + self.actions) * self.atoms, layer_norm)

    @property
    def noise_size(self) -> int:
        """Number of random values for factorised noise: one for each input and output of each layer."""
        return sum(sum(shape) for shape in self.shapes if len(shape) == 2)

    def zero_between_streams_(self, last: Any) -> None:  # Any: numpy or torch
        """Zero the blocks between the two streams in the last layer's weights `[2 H, (1 + actions) atoms]`."""
        half = self.network.hidden[-1]
        last[:half, self.atoms :] = 0.0
        last[half:, : self.atoms] = 0.0

    def joined(self, out: Any) -> Any:  # Any: numpy or torch
        """Return value + advantage - mean advantage, `[N, (1 + actions) * atoms]` -> `[N, actions * atoms]`."""
        advantage = out[:, self.atoms :].reshape(-1, self.actions, self.atoms)
        value = out[:, : self.atoms]
        return (advantage + (value - advantage.mean(1))[:, None]).reshape(-1, self.actions * self.atoms)

    def joined_backward(self, d: Tensor) -> Tensor:
        """Return d loss/d out, given d loss/d joined(out): `[N, actions * atoms]` -> `[N, (1 + actions) * atoms]`."""
        d = d.view(-1, self.actions, self.atoms)
        d_value = d.sum(1)
        d_advantage = d - d_value.unsqueeze(1) / self.actions
        return torch.cat([d_value, d_advantage.flatten(1)], 1)


def fill_noise(views: Sequence[Any], normals: Any) -> None:  # Any: numpy or torch
    """Write factorised noise (eq. 10 and 11), made from `noise_size` normal samples, into the tensors of an MLP.

    Every input and every output of a layer has one sample. With f(x) = sign(x) sqrt(|x|), the noise of a weight is
    f(input's sample) * f(output's sample), and the noise of a bias is f(output's sample). Layer norm has no noise.
    """
    scaled, begin = normals / (abs(normals) + 1e-12) ** 0.5, 0
    for i, view in enumerate(views):
        if view.ndim == 2:
            inputs, outputs = view.shape
            of_inputs, of_outputs = scaled[begin : begin + inputs], scaled[begin + inputs : begin + inputs + outputs]
            view[...] = of_inputs[:, None] * of_outputs
            views[i + 1][...] = of_outputs
            begin += inputs + outputs


class QNetwork:
    """The trainer's Q network. With `sigma`, weights are mean + sigma * noise; the noise is 0 until `draw`."""

    times = 1
    """Number of rows of the MLP's input for each row of features."""

    def __init__(self, shape: QShape, mlp: FlatMLP, sigma: FlatPart | None = None) -> None:
        self.shape, self.mlp, self.mean, self.sigma = shape, mlp, mlp, sigma
        self.noise_size = shape.noise_size
        if sigma is not None:
            self.mlp = mlp.on(
                FlatPart(mlp.flat.clone(), mlp.grad)
            )  # noisy weights, whose gradient is the means' gradient
            self.noise = torch.zeros_like(mlp.flat)
            self.noise_views = mlp.on(FlatPart(self.noise, self.noise)).networks[0]

    def init(self) -> None:
        """Initialise the sigmas of noisy weights, and set the weights between dueling streams to 0."""
        layers = [self.mean.networks[0]]
        if self.sigma is not None:
            sigmas = self.mean.on(self.sigma).networks[0]
            for i in range(0, len(sigmas), self.mean.step):  # layer norm's gains and biases have no noise
                for view in sigmas[i : i + 2]:
                    view.fill_(SIGMA / len(sigmas[i]) ** 0.5)
            layers.append(sigmas)
        if self.shape.dueling:
            for views in layers:
                self.shape.zero_between_streams_(views[-2])

    def draw(self, normals: Tensor) -> None:
        """Replace the noise of all weights by noise computed from standard normal samples `[noise_size]`."""
        assert self.sigma is not None
        fill_noise(self.noise_views, normals)
        torch.addcmul(self.mean.flat, self.sigma.flat, self.noise, out=self.mlp.flat)

    def forward(
        self, x: Tensor, masks: Sequence[Tensor] = (), fraction: Tensor | None = None
    ) -> tuple[Tensor, ForwardPass]:
        """Return outputs, `[N, features] -> [N, actions * atoms]`, and what `backward` needs. `fraction` is unused."""
        out, trace = self.mlp.forward(x, masks)
        return (self.shape.joined(out[0]) if self.shape.dueling else out[0]), trace

    def backward(self, trace: ForwardPass, d_out: Tensor, to_inputs: bool = False) -> Tensor:
        """Write d loss/d weights, given d loss/d out. With `to_inputs`, return d loss/d x `[N, features]`."""
        if self.shape.dueling:
            d_out = self.shape.joined_backward(d_out)
        d_x = self.mlp.backward(trace, d_out.unsqueeze(0), to_inputs=to_inputs)
        if self.shape.dueling:
            self.shape.zero_between_streams_(self.mlp.grads[0][-2])
        if self.sigma is not None:
            torch.mul(self.mlp.grad, self.noise, out=self.sigma.grad)
        return d_x


class ActingQNetwork:
    """The policy's Q network in numpy. Each call draws new noise for noisy weights."""

    def __init__(self, shape: QShape) -> None:
        self.shape, self.activation = shape, shape.network.activation
        self.shapes = shape.shapes * (2 if shape.noisy else 1)
        self.params: list[Array] = []
        if shape.noisy:
            self.noise = [np.zeros(each, np.float32) for each in shape.shapes]

    def load(self, params: list[Array]) -> list[Array]:
        """Load the mean weights and, with noise, the sigmas; return the means as the parameters of a plain MLP.

        A dueling network becomes a plain MLP, because its last layer and the joining of its streams are linear.
        """
        self.params, params = params, params[: len(self.shape.shapes)]
        if self.shape.dueling:
            params[-2:] = self.shape.joined(params[-2]), self.shape.joined(params[-1][None])[0]
        return params

    def __call__(self, features: Array, rng: np.random.Generator | None) -> Array:
        """Return outputs, `[E, features] -> [E, actions * atoms]`. The weights' noise is drawn once for all rows."""
        assert rng is not None
        num = len(self.shape.shapes)
        fill_noise(self.noise, rng.standard_normal(self.shape.noise_size, np.float32))
        pairs = zip(self.params[:num], self.params[num:], self.noise, strict=True)
        out = mlp_numpy([mean + sigma * noise for mean, sigma, noise in pairs], features, self.activation)
        values: Array = self.shape.joined(out) if self.shape.dueling else out
        return values
