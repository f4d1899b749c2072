"""A policy as a torch module from observations to actions, for ONNX and torch.export, or as numpy source."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.convert.convert import ROWS, general
from drl_cli.convert.program import KERNELS
from drl_cli.convert.source import write
from drl_cli.convert.trace import Draws, NotConverted, Trace, record
from drl_cli.deploy.formats import LOAD, not_exported
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.deploy.standalone import bounds
from drl_cli.envs.units import ArraySpec, Units
from drl_cli.networks.mlp_module import MLP
from drl_cli.optim.products import Products
from drl_cli.runtime.roles.normalization import NormalizedPolicy, Statistics
from drl_cli.types import MASK, Array, EnvSpec, leaves


class Graph(nn.Module):
    """A module that computes actions from observations.

    Its inputs are `units.inputs` `[n, ...]` and, for a policy with memory, the state `[n, state_size]`. Its outputs are
    `units.outputs`, the scores of all choices `[n, num_scores]` if the policy's distribution has them, and the new
    state if there is one. `policy` is a TorchPolicy that acts by its torch modules, perhaps in a NormalizedPolicy. It
    can't be used afterwards, because this module changes its torch modules.
    """

    def __init__(self, policy: Any, spec: EnvSpec, units: Units) -> None:
        super().__init__()
        self.columns, self.units, self.action = leaves(spec.obs), units, spec.action
        self.normalize = _Normalize(policy.statistics) if isinstance(policy, NormalizedPolicy) else None
        policy = policy.policy if isinstance(policy, NormalizedPolicy) else policy
        assert isinstance(policy, TorchPolicy)
        self.policy, self.parts = policy, nn.ModuleDict(policy.modules)
        self.state_size = 0 if not_exported(type(policy)) else policy.memory_size  # only a search has used it
        for module in self.modules():
            if isinstance(module, MLP):
                module.products = _AnyRows()
        for parameter in self.parameters():  # copied, because the policy's are views of one large tensor
            parameter.data = parameter.data.clone()
        with torch.no_grad():
            outputs = self(*example(units, self, 1).values())
        num_others = len(units.outputs) + (self.state_size > 0)
        self.num_scores = outputs[len(units.outputs)].shape[1] if len(outputs) > num_others else 0

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        parts = zip(self.columns.items(), self.units.inputs, inputs, strict=False)
        obs = {path: self._seen(path, part, tensor, column.dtype) for (path, column), part, tensor in parts}
        if self.normalize is not None:
            obs = self.normalize(obs)
        self.policy.memory = inputs[-1] if self.state_size else None
        action, scores = _greedy(self.policy, obs.get("", obs))
        of_env = _box_actions if self.action.kind == "box" else _choices
        more = [each for each in (scores, self.policy.memory) if each is not None]
        return (*of_env(self.units.outputs, action), *more)

    def _seen(self, path: str, part: ArraySpec, tensor: Tensor, dtype: str) -> Tensor:
        if path == MASK:
            masks = torch.split(tensor, list(self.action.choices), 1)
            return torch.cat([mask | ~mask.any(1, keepdim=True) for mask in masks], 1)
        return (tensor - torch.tensor(part.start) if part.choices else tensor).to(getattr(torch, dtype))


def _greedy(policy: TorchPolicy, obs: Any) -> tuple[Tensor, Tensor | None]:  # Any: a tensor, or a dict of tensors
    """Return the actions `[n, ...]` without a search, and the scores of the choices `[n, choices]` or None."""
    kind = type(policy)
    if kind.choose is not TorchPolicy.choose or kind.prior is not TorchPolicy.prior:
        return policy.prior(obs), None
    distribution, _ = policy.distribution(obs, _NoStep())  # type: ignore[arg-type]
    return distribution.mode, distribution.scores


class _NoStep:
    """Stands for the previous step, which an exported policy does not get."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"the policy reads `{name}` of the previous step, which an export does not get; {LOAD}")


def make_graph(trained: TrainedPolicy) -> Graph:
    policy = trained.fresh(in_torch=True)
    return Graph(policy, trained.spec, trained.units).eval()


class _AnyRows(Products):
    """Products that are computed in one way, because an exported program does not know the number of rows."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, x, weight)


class _Normalize(nn.Module):
    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        self.bound, self.paths = statistics.bound, list(statistics.obs)
        for i, (mean, scale) in enumerate(statistics.obs.values()):
            self.register_buffer(f"mean{i}", torch.from_numpy(mean.copy()))
            self.register_buffer(f"scale{i}", torch.from_numpy(scale.copy()))

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        changed = dict(obs)
        for i, path in enumerate(self.paths):
            mean, scale = self.get_buffer(f"mean{i}"), self.get_buffer(f"scale{i}")
            changed[path] = ((obs[path] - mean) / scale).clamp(-self.bound, self.bound)
        return changed


def _box_actions(outputs: Sequence[ArraySpec], raw: Tensor) -> list[Tensor]:
    """Scale `raw` `[n, dimensions]` from [-1, 1] to the environment's actions: low + (raw + 1) / 2 (high - low).

    If a dimension lacks a bound, do not scale, but clip the value to the other bound if there is one. Compute in
    float64, as `Units.to_env` does.
    """
    sizes, actions = [int(np.prod(part.shape)) for part in outputs], []
    for part, values in zip(outputs, torch.split(raw.double(), sizes, 1), strict=True):
        low, high = bounds(vars(part))
        is_free = ~(np.isfinite(low) & np.isfinite(high))
        first, last = (np.where(is_free, 0.0, bound) for bound in (low, high))
        scaled = torch.tensor(first) + (values.clamp(-1.0, 1.0) + 1.0) * torch.tensor((last - first) / 2)
        if is_free.any():
            free = torch.clamp(values, torch.tensor(low), torch.tensor(high))
            scaled = torch.where(torch.tensor(is_free), free, scaled)
        actions.append(scaled.to(getattr(torch, part.dtype)).reshape(-1, *part.shape))
    return actions


def _choices(outputs: Sequence[ArraySpec], choices: Tensor) -> list[Tensor]:
    widths = [len(part.choices) for part in outputs]
    return [
        (each.reshape(-1, *part.shape) + torch.tensor(part.start)).to(getattr(torch, part.dtype))
        for part, each in zip(outputs, torch.split(choices.reshape(-1, sum(widths)), widths, 1), strict=True)
    ]


def example(units: Units, graph: Graph, rows: int) -> dict[str, Tensor]:
    """Return random inputs `[rows, ...]` of the graph by name, with a mask of ones."""
    rng = np.random.default_rng(rows)
    inputs = {part.name: _random(part, rows, rng) for part in units.inputs}
    state = torch.from_numpy(rng.standard_normal((rows, graph.state_size), np.float32))
    return {**inputs, "state": state} if graph.state_size else inputs


def _random(part: ArraySpec, rows: int, rng: np.random.Generator) -> Tensor:
    shape, dtype = (rows, *part.shape), getattr(torch, part.dtype)
    if part.name == MASK:
        return torch.ones(shape, dtype=torch.bool)
    if part.choices:
        return torch.from_numpy(np.array(part.start) + rng.integers(np.reshape(part.choices, part.shape), size=shape))
    values = rng.integers(256, size=shape) if dtype == torch.uint8 else rng.standard_normal(shape)
    return torch.from_numpy(values).to(dtype)


HEAD = """\"\"\"The network of {name}, written by drl-export: `act` maps observations `[n, ...]` to actions.

`load_act` computes what depends only on the parameters `v` and on the constants `c`. `act` gets the result as `w`.
\"\"\"

from collections.abc import Sequence

import numpy as np

Array = np.ndarray
"""


def numpy_source(graph: Graph, units: Units, name: str) -> tuple[str, dict[str, Array]]:
    """Return the source, and its arrays: `parameters` `[size]`, and `constant0` and so on.

    Raise ValueError, with the reason, if numpy can't compute the policy.
    """
    constants: list[Array] = []
    try:
        traces = [_trace(graph, example(units, graph, rows)) for rows in ROWS]
        source = write("act", general(*traces), constants)
    except NotConverted as error:
        raise ValueError(f"{error}; say format=onnx or format=torch") from error
    kernels = [inspect.getsource(kernel) for key, kernel in KERNELS.items() if f"{key}(" in source]
    parameters = torch.cat([each.detach().flatten() for each in graph.parameters()] or [torch.zeros(0)]).numpy()
    arrays = {f"constant{i}": np.ascontiguousarray(array) for i, array in enumerate(constants)}
    return "\n\n".join([HEAD.format(name=name), *kernels, source]), {"parameters": parameters, **arrays}


def _trace(graph: Graph, inputs: dict[str, Tensor]) -> Trace:
    def compute() -> dict[str, Tensor]:
        return {str(i): output for i, output in enumerate(graph(*inputs.values()))}

    with torch.no_grad():
        compute()  # modules may prepare views of their parameters in the first call
    names = {name.replace(".", "_"): tensor for name, tensor in inputs.items()}
    return record(compute, names, [each.detach() for each in graph.parameters()], Draws(np.random.PCG64()))
