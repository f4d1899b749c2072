"""The numpy forms of drl.MLP and other networks: with them, a policy acts without torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.inputs import Inputs
from drl_cli.networks.mlp import Shapes, activate_numpy, mlp_numpy, mlp_shapes, norm_numpy, num_params, split
from drl_cli.networks.q_network import QShape, cosines, factorised, implicit_shapes
from drl_cli.networks.torsos import torso_name
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.deferred import NotInNumpy, present


def network_class(name: str) -> Any:  # Any: a class of torch modules, or of their numpy forms
    """Return a class of NUMPY_FORMS: the torch module or, if networks are built in numpy, its numpy form."""
    if not present.in_numpy:
        from drl_cli.networks import mlp_module, q_module  # imports torch

        return getattr(q_module if "QNetwork" in name else mlp_module, name)
    return NUMPY_FORMS[name]


class ActingMLP:
    """A drl.MLP in numpy, with the same arguments. Only a single network without normalised weights can be called."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        network: NetworkConfig,
        ensemble: int = 1,
        last: float = 1.0,
        norm: str = "none",
        generator: Any = None,
        squashed: bool = False,
    ) -> None:
        self.shapes: Shapes = mlp_shapes(inputs, network.hidden, outputs, layer_norm=network.layer_norm)
        self.network, self.squashed = network, squashed
        self.is_plain = ensemble == 1 and norm == "none"
        self.params: list[Array] = []

    def load(self, params: Array) -> Array:
        """Load the first values of `params` `[size]`, and return the other values."""
        num = num_params(self.shapes)
        self.params = split(params[:num], self.shapes)
        return params[num:]

    def __call__(self, x: Array) -> Array:
        out = mlp_numpy(self.params, x, self.network.activation)
        return np.tanh(out, out=out) if self.squashed else out


class ActingEmbedding(ActingMLP):
    """A drl.Embedding in numpy."""

    def __call__(self, x: Array) -> Array:
        return activate_numpy(norm_numpy(super().__call__(x)), self.network.activation)


class ActingNetwork(ActingMLP):
    """A drl.Network in numpy, whose torso only flattens observations."""

    def __init__(
        self,
        network: NetworkConfig,
        spec: EnvSpec,
        outputs: int,
        actions: int = 0,
        ensemble: int = 1,
        last: float = 1.0,
    ) -> None:
        if torso_name(network, spec) is not None:
            raise NotInNumpy("a torso of drl.Network")
        self.inputs = Inputs(spec.obs)
        super().__init__(self.inputs.size + actions, outputs, network, ensemble=ensemble, last=last)

    def __call__(self, obs: Any, action: Array | None = None) -> Array:  # Any: an array, or a dict of arrays
        x = self.inputs.array(obs)
        return super().__call__(x if action is None else np.concatenate([x, action], -1))


class ActingCritic(ActingMLP):
    """A drl.Critic in numpy, for one network."""

    def __init__(
        self, features: int, actions: int, network: NetworkConfig, ensemble: int | None = None, outputs: int = 1
    ) -> None:
        super().__init__(features + actions, outputs, network, ensemble=ensemble or 1)
        self.is_plain, self.has_one_output = ensemble is None, outputs == 1

    def __call__(self, features: Array, action: Array) -> Array:  # type: ignore[override]
        values = super().__call__(np.concatenate([features, action], -1))
        return values[..., 0] if self.has_one_output else values


class ActingScalar:
    """A drl.Scalar in numpy."""

    def __init__(self, first: float = 0.0) -> None:
        self.value: Any = np.float32(first)

    def load(self, params: Array) -> Array:
        """Load the first value of `params` `[size]`, and return the other values."""
        self.value = params[0]
        return params[1:]

    def __call__(self) -> Any:
        return self.value


class ActingVector(ActingScalar):
    """A drl.Vector in numpy."""

    def __init__(self, size: int, first: float | Sequence[float] = 0.0) -> None:
        self.value = np.full(size, first, np.float32)

    def load(self, params: Array) -> Array:
        size = len(self.value)
        (self.value,) = split(params[:size], [(size,)])
        return params[size:]


class ActingLayers:
    """The layers of a Q network in numpy.

    Without noise, it is an MLP with the mean weights and without dueling streams: the last layer and `joined` are
    linear, and `load` combines them into one layer. `plain` has the weights and biases of this MLP.
    """

    def __init__(self, shape: QShape) -> None:
        self.shape, self.activation, self.shapes = shape, shape.network.activation, shape.shapes
        self.plain: list[Array] = []

    def load(self, params: Array) -> Array:
        """Load the mean weights, the first values of `params` `[size]`; return the other values."""
        num = num_params(self.shapes)
        self.means = split(params[:num], self.shapes)
        self.plain = list(self.means)
        if self.shape.dueling:
            *_, weight, bias = self.means
            self.plain[-2:] = self.shape.joined(weight), self.shape.joined(bias[None])[0]
        return params[num:]

    def load_sigmas(self, params: Array) -> Array:
        """Load the sigmas of a noisy network, the first values of `params` `[size]`; return the other values."""
        if not self.shape.noisy:
            return params
        num = num_params(self.shapes)
        self.sigmas = split(params[:num], self.shapes)
        return params[num:]

    def __call__(self, x: Array, rng: np.random.Generator | None) -> Array:
        """Return the outputs `[n, actions * atoms]` for features `[n, features]`.

        If the network is noisy and `rng` is given, it draws new noise for the weights, which is the same for all rows.
        """
        if rng is None or not self.shape.noisy:
            return mlp_numpy(self.plain, x, self.activation)
        noise = factorised(self.shapes, rng.standard_normal(self.shape.noise_size, np.float32))
        weights = [mean + sigma * draw for mean, sigma, draw in zip(self.means, self.sigmas, noise, strict=True)]
        out = mlp_numpy(weights, x, self.activation)
        values: Array = self.shape.joined(out) if self.shape.dueling else out
        return values


class ActingQNetwork:
    """A drl.QNetwork in numpy, with the same arguments.

    `mlp` has the weights and biases of the MLP that the last call without noise evaluated, which an export writes.
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
        self.layers, self.actions, self.outputs = ActingLayers(shape), actions, outputs
        self.mlp: Sequence[Array] = ()
        self.weights: Array | None = None  # those of `mlp`

    def load(self, params: Array) -> Array:
        """Load the first values of `params` `[size]`, and return the other values."""
        rest = self.layers.load_sigmas(self.layers.load(params))
        self.mlp, self.weights = self.layers.plain, None
        return rest

    def __call__(self, x: Array, noise: np.random.Generator | None = None) -> Array:
        out = self.layers(x, noise)
        return out if self.outputs is None else out.reshape(len(x), self.actions, self.outputs)

    def weighted(self, x: Array, weights: Array, noise: np.random.Generator | None = None) -> Array:
        if noise is not None and self.layers.shape.noisy:
            return self._sums(self.layers(x, noise), weights)
        if self.weights is not weights:  # a last layer with summed parameters returns the sums directly
            *hidden, weight, bias = self.layers.plain
            self.mlp, self.weights = [*hidden, self._sums(weight, weights), self._sums(bias, weights)[0]], weights
        return mlp_numpy(self.mlp, x, self.layers.activation)

    def _sums(self, out: Array, weights: Array) -> Array:
        sums: Array = out.reshape(-1, self.actions, len(weights)) @ weights
        return sums


class ActingImplicitQNetwork:
    """A drl.ImplicitQNetwork in numpy, with the same arguments. All rows have the same fractions `[K]`."""

    def __init__(
        self, features: int, actions: int, network: NetworkConfig, dueling: bool = False, noisy: bool = False
    ) -> None:
        shapes = implicit_shapes(network, features, actions, dueling=dueling, noisy=noisy)
        self.parts = {name: ActingLayers(shape) for name, shape in shapes.items()}
        self.actions, self.activation = actions, network.activation
        self.fraction: Array | None = None  # that of `embedded`
        self.embedded: Array = np.zeros((0, 0), np.float32)

    def load(self, params: Array) -> Array:
        """Load the first values of `params` `[size]`, and return the other values."""
        for layers in self.parts.values():
            params = layers.load(params)
        for layers in self.parts.values():
            params = layers.load_sigmas(params)
        self.fraction = None
        return params

    def __call__(self, x: Array, fraction: Array, noise: np.random.Generator | None = None) -> Array:
        """Return K quantiles for each action, `[n, actions, K]`, for features `[n, features]` and fractions `[K]`."""
        if self.fraction is not fraction:  # usually, the first call after `load`
            embedded = self.parts["embedding"](cosines(fraction.astype(np.float32)), None)
            self.fraction, self.embedded = fraction, np.maximum(embedded, 0.0)  # [K, W]
        hidden = activate_numpy(self.parts["trunk"](x, noise), self.activation) if "trunk" in self.parts else x
        num, width = self.embedded.shape
        products = hidden[:, None] * self.embedded  # [n, K, W]
        out = self.parts["online"](products.reshape(-1, width), noise)  # [n K, actions]
        return np.ascontiguousarray(out.reshape(len(x), num, self.actions).transpose(0, 2, 1))


NUMPY_FORMS: dict[str, Any] = {
    "MLP": ActingMLP,
    "Critic": ActingCritic,
    "Network": ActingNetwork,
    "Embedding": ActingEmbedding,
    "Scalar": ActingScalar,
    "Vector": ActingVector,
    "QNetwork": ActingQNetwork,
    "ImplicitQNetwork": ActingImplicitQNetwork,
}
