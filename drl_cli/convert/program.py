"""Program: a policy's computations as numpy source, and NumpyPolicy, which runs it. Neither imports torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl_cli.algos.function_policy import FunctionPolicy, first_exploration
from drl_cli.algos.policy import RandomActions
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.convert.kernels import KERNELS
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
    """Return the inputs of a program by name."""
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
