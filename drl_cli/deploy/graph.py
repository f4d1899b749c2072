"""One torch module that maps observations to the environment's actions, for torch.export and ONNX."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drl_cli.algos.base import Policy
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.deploy.formats import find_head
from drl_cli.deploy.standalone import FORBIDDEN, bounds, risky
from drl_cli.envs.units import ArraySpec, Units
from drl_cli.networks.config import Activation, NetworkConfig
from drl_cli.networks.head import Head
from drl_cli.networks.mlp_module import MLP, Embedding
from drl_cli.networks.modules import ACTIVATIONS
from drl_cli.optim.products import Products
from drl_cli.runtime.roles.normalization import NormalizedPolicy, Statistics
from drl_cli.types import MASK, Array, EnvSpec, leaves


class Graph(nn.Module):
    """A module that computes actions from observations.

    Its inputs are `units.inputs` `[n, ...]` and, for a policy with memory, the state `[n, state_size]`. Its outputs are
    `units.outputs`, the values of all choices `[n, choices]` if `gives_values`, and the new state if there is one.
    `policy` can't be used afterwards, because this module changes the policy's torch modules. `formats.check` says
    which policies have a graph.
    """

    def __init__(self, policy: Policy, spec: EnvSpec, units: Units) -> None:
        super().__init__()
        self.columns, self.units, self.action = leaves(spec.obs), units, spec.action
        self.normalize = _Normalize(policy.statistics) if isinstance(policy, NormalizedPolicy) else None
        policy = policy.policy if isinstance(policy, NormalizedPolicy) else policy
        head = find_head(policy)
        self.choose = _Modules(policy) if head is None else _Head(head, spec.action.size)
        for parameter in self.parameters():  # copied, because the policy's are views of one large tensor
            parameter.data = parameter.data.clone()

    @property
    def state_size(self) -> int:
        """Size of the recurrent state, 0 without memory."""
        return self.choose.state_size

    @property
    def gives_values(self) -> bool:
        return self.action.kind != "box" and isinstance(self.choose, _Head)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        state = inputs[-1] if self.state_size else None
        parts = zip(self.columns.items(), self.units.inputs, inputs, strict=False)
        obs = {path: self._seen(path, part, tensor, column.dtype) for (path, column), part, tensor in parts}
        if self.normalize is not None:
            obs = self.normalize(obs)
        raw, state = self.choose(obs.get("", obs), state)
        memory = [] if state is None else [state]
        if self.action.kind == "box":
            return (*_box_actions(self.units.outputs, raw), *memory)
        if not self.gives_values:
            return (*_choices(self.units.outputs, raw), *memory)
        values = raw if MASK not in obs else torch.where(obs[MASK], raw, FORBIDDEN)
        best = [part.argmax(1) for part in torch.split(values, list(self.action.choices), 1)]
        return (*_choices(self.units.outputs, torch.stack(best, 1)), values, *memory)

    def _seen(self, path: str, part: ArraySpec, tensor: Tensor, dtype: str) -> Tensor:
        """Convert a part of an observation to the form on which the policy was trained."""
        if path == MASK:
            masks = torch.split(tensor, list(self.action.choices), 1)
            return torch.cat([mask | ~mask.any(1, keepdim=True) for mask in masks], 1)
        return (tensor - torch.tensor(part.start) if part.choices else tensor).to(getattr(torch, dtype))


class _Modules(nn.Module):
    """Computes actions with `prior` of a TorchPolicy. `parts` are the modules that `prior` calls."""

    state_size = 0

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        assert isinstance(policy, TorchPolicy)
        self.policy, self.parts = policy, nn.ModuleDict(policy.modules)

    def forward(self, obs: Any, state: Tensor | None) -> tuple[Tensor, Tensor | None]:  # Any: a tensor or a dict
        return self.policy.prior(obs), state


class _Head(nn.Module):
    """The torch modules and the MLPs of a Head, for `choices` choices or dimensions of a box action."""

    embedded: Tensor | None
    support: Tensor | None

    def __init__(self, head: Head, choices: int) -> None:
        super().__init__()
        self.head, self.choices, self.torso, self.memory = head, choices, head.torso, head.memory
        self.state_size = head.memory.state_size if head.memory else 0
        self.layers, self.trunk = _mlp(head.layers, head.activation), nn.Sequential()
        if head.norms_trunk:
            self.trunk.append(_mlp(head.trunk, head.trunk_activation, Embedding))
        elif head.trunk:
            self.trunk.extend([_mlp(head.trunk, head.trunk_activation), ACTIVATIONS[head.trunk_activation]()])
        for name, array in {"embedded": head.embedded, "support": head.support}.items():
            self.register_buffer(name, None if array is None else torch.from_numpy(array.copy()))

    def forward(self, obs: Any, state: Tensor | None) -> tuple[Tensor, Tensor | None]:  # Any: a tensor or a dict
        x = self.torso(obs)
        if state is not None:
            assert self.memory is not None
            x, state = self.memory.step(x, state)
        x = self._outputs(x)
        if self.support is not None:
            probs = x.reshape(x.shape[0], self.choices, -1).softmax(-1)
            counts = risky(probs.cumsum(-1).clip(max=1.0), *self.head.risk)
            x = torch.diff(counts, dim=-1, prepend=torch.zeros_like(counts[..., :1])) @ self.support
        if (num := self.head.components) > 1:
            best = x[:, -num:].argmax(1).view(-1, 1, 1).expand(-1, 1, self.choices)
            x = x[:, :-num].reshape(-1, num, self.choices).gather(1, best).squeeze(1)
        return torch.tanh(x) if self.head.is_squashed else x, state

    def _outputs(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        if self.embedded is not None:
            x = (x.unsqueeze(1) * self.embedded).flatten(0, 1)
        out: Tensor = self.layers(x)
        return out if self.embedded is None else out.reshape(-1, len(self.embedded), self.choices).mean(1)


class _AnyRows(Products):
    """Products that are computed in one way, because an exported program does not know the number of rows."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, x, weight)


def _mlp(arrays: Sequence[Array], activation: Activation, kind: type[MLP] = MLP) -> MLP:
    """Return an MLP with the parameters of a Head."""
    weights = [array for array in arrays if array.ndim == 2]
    *hidden, outputs = (weight.shape[1] for weight in weights)
    network = NetworkConfig((*hidden,), activation, "uniform", layer_norm=len(arrays) > 2 * len(weights))
    mlp = kind(len(weights[0]), outputs, network)
    mlp.products = _AnyRows()
    mlp.flat.data = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    return mlp


class _Normalize(nn.Module):
    """Normalise the parts of an observation that have statistics."""

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
    """Scale actions as `standalone.box_actions` does, in float64."""
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
    """Convert choices, which are counted from 0, to actions of the environment."""
    widths = [len(part.choices) for part in outputs]
    return [
        (each.reshape(-1, *part.shape) + torch.tensor(part.start)).to(getattr(torch, part.dtype))
        for part, each in zip(outputs, torch.split(choices.reshape(-1, sum(widths)), widths, 1), strict=True)
    ]


def example(units: Units, graph: Graph, rows: int = 2) -> list[Tensor]:
    """Return inputs for tracing the graph: zeros, the first choice, a mask of ones, and a state of zeros."""
    tensors = []
    for part in units.inputs:
        shape, dtype = (rows, *part.shape), getattr(torch, part.dtype)
        fill = torch.tensor(part.start) if part.choices else torch.tensor(part.name == MASK)
        tensors.append(torch.zeros(shape, dtype=dtype) + fill.to(dtype))
    return [*tensors, torch.zeros(rows, graph.state_size)] if graph.state_size else tensors
