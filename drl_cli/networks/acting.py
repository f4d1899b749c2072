"""The numpy forms of drl.MLP, drl.Network, drl.Scalar and drl.Vector: with them, a policy acts without torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.inputs import Inputs
from drl_cli.networks.mlp import Shapes, mlp_numpy, mlp_shapes, num_params, split
from drl_cli.networks.torsos import torso_name
from drl_cli.types import Array, EnvSpec
from drl_cli.utils.deferred import NotInNumpy, present


def network_class(name: str) -> Any:  # Any: a class of torch modules, or of their numpy forms
    """Return drl.MLP, drl.Network, drl.Scalar or drl.Vector, or its numpy form if networks are built in numpy."""
    if not present.in_numpy:
        from drl_cli.networks import mlp_module  # imports torch

        return getattr(mlp_module, name)
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

    def head(self) -> dict[str, Any]:
        """Return the fields of Head that describe this network."""
        network = self.network
        layers = {"layers": self.params, "activation": network.activation, "layer_norm": network.layer_norm}
        return {**layers, "is_squashed": self.squashed}


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


NUMPY_FORMS = {"MLP": ActingMLP, "Network": ActingNetwork, "Scalar": ActingScalar, "Vector": ActingVector}
