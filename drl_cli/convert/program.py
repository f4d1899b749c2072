"""NumpyPolicy: runs a numpy program that was converted from a policy's torch code; the functions of such programs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.algos.function_policy import FunctionPolicy, first_exploration
from drl_cli.algos.torch_policy import RandomActions, TorchPolicy
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import Array, Columns, EnvSpec, Obs, PreviousStep, State, num_rows

Function = Callable[..., tuple[Array, ...]]


@dataclass(frozen=True)
class Program:
    """The source of functions that compute the columns of a policy.

    `columns` has the names of the columns that each function returns. For each function NAME, `source` defines
    `load_NAME(v, c)`, which computes what depends only on the parameter vector `v` `[size]` and on `constants`, and
    `NAME(w, rng, ...)` of this result, of a random generator and of the inputs. The inputs end with the exploration
    values that `exploration` names.
    """

    source: str
    constants: Sequence[Array]
    size: int
    columns: Mapping[str, Sequence[str]]
    exploration: Sequence[str] = ()


def inputs(
    obs: Any, last: PreviousStep | None, memory: Any, exploration: Mapping[str, Any]
) -> dict[str, Any]:  # Any: arrays or tensors
    parts = {f"obs{i}": obs[path] for i, path in enumerate(sorted(obs))} if isinstance(obs, Mapping) else {"obs": obs}
    explored = {f"explore_{name}": value for name, value in exploration.items()}
    previous = dict.fromkeys(PreviousStep._fields) if last is None else last._asdict()
    return {**parts, **{f"last_{name}": value for name, value in previous.items()}, "memory": memory, **explored}


class NumpyPolicy(TorchPolicy):
    """A base class that `numpy_policy` puts before a user's class: it runs a program instead of the torch modules."""

    program: Program

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        RandomActions.__init__(self, spec, seed)
        self.config, self.declared_columns = config, self.extra_columns(config, network, spec)
        self.memory = None
        if issubclass(type(self), FunctionPolicy):
            self.memory_size = network.state_size if "state" in self.declared_columns else 0
        self.first = first_exploration(type(self), config)
        names: dict[str, Any] = {"np": np, **KERNELS}  # Any: numpy and functions
        exec(compile(self.program.source, "<policy>", "exec"), names)
        self._names, self._weights = names, dict[str, Any]()

    def load(self, params: Array) -> None:
        if params.shape != (self.program.size,):
            raise ValueError(f"parameter vector has shape {params.shape}, the policy needs ({self.program.size},)")
        self._weights = {
            name: self._names[f"load_{name}"](params, self.program.constants) for name in self.program.columns
        }

    def state(self) -> State:
        return {**RandomActions.state(self), **({} if self.memory is None else {"memory": np.asarray(self.memory)})}

    def load_state(self, state: State) -> None:
        RandomActions.load_state(self, state)
        self.memory = state.get("memory")  # type: ignore[assignment]  # an array here

    def _run(self, method: str, obs: Obs, last: PreviousStep | None) -> Columns:
        if self.memory_size:
            assert last is not None, "a policy with memory needs the previous step"
            self.memory = self._memory_of(num_rows(obs), last)  # type: ignore[assignment]  # an array here
        values = {**self.first, **self.exploration}
        explored = {name: values[name] for name in self.program.exploration}
        given = inputs(obs, last, self.memory, explored).values()
        results = self._names[method](self._weights[method], self.rng, *given)
        columns = dict(zip(self.program.columns[method], results, strict=True))
        if self.memory_size:
            self.memory = columns.pop("memory")
        return columns


def numpy_policy(policy: type[TorchPolicy], program: Program) -> type[NumpyPolicy]:
    """Return the class of a user's policy that runs a program. The user's `explored` stays."""
    return type(policy.__name__, (NumpyPolicy, policy), {"__module__": policy.__module__, "program": program})


def layer_norm(x: Array, size: Sequence[int], weight: Array | None, bias: Array | None, eps: float) -> Array:
    """Normalise the last axes, whose shape is `size`, to mean 0 and variance 1; then multiply and add."""
    axes = tuple(range(-len(size), 0))
    x = x - x.mean(axes, keepdims=True)
    scale = 1.0 / np.sqrt(np.square(x).mean(axes, keepdims=True) + np.float32(eps))
    x *= scale if weight is None else weight * scale
    if bias is not None:
        x += bias
    return x


def softmax(x: Array, dim: int) -> Array:
    x = np.exp(x - x.max(dim, keepdims=True))
    x /= x.sum(dim, keepdims=True)
    return x


def log_softmax(x: Array, dim: int) -> Array:
    x = x - x.max(dim, keepdims=True)
    x -= np.log(np.exp(x).sum(dim, keepdims=True))
    return x


def sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))  # which does not overflow


def elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def softplus(x: Array, beta: float, threshold: float) -> Array:
    return np.where(beta * x > threshold, x, np.logaddexp(beta * x, np.float32(0.0)) / beta)


def scattered(x: Array, dim: int, index: Array, source: Array | float) -> Array:
    """Return a copy of `x` with the values `source` at `index` along the axis `dim`."""
    x = x.copy()
    np.put_along_axis(x, index, source, dim)
    return x


def convolution(x: Array, weight: Array, bias: Array | None, stride: Sequence[int], padding: Sequence[int]) -> Array:
    """Return the convolution `[n, out, h, w]` of images `[n, in, H, W]` with the weights `[out, in, kh, kw]`."""
    (sh, sw), (ph, pw) = stride, padding
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw))) if ph or pw else x
    seen = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))[:, :, ::sh, ::sw]
    n, _, h, w, _, _ = seen.shape
    columns = seen.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, -1)
    out = columns @ weight.reshape(len(weight), -1).T
    if bias is not None:
        out += bias
    return out.reshape(n, h, w, -1).transpose(0, 3, 1, 2)


def max_pool(x: Array, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Array:
    """Return the largest value of each window of images `[n, channels, H, W]`."""
    (sh, sw), (ph, pw) = stride, padding
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=-np.inf) if ph or pw else x
    largest: Array = np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))[:, :, ::sh, ::sw].max((-2, -1))
    return largest


def clamp(x: Array, low: Array | float | None, high: Array | float | None) -> Array:
    """Return new values between `low` and `high`. Either may be None."""
    out = x if low is None else np.maximum(x, low)
    return out if high is None else np.minimum(out, high)


KERNELS = {
    f.__name__: f
    for f in (layer_norm, softmax, log_softmax, sigmoid, elu, softplus, scattered, convolution, max_pool, clamp)
}
