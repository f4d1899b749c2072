"""Describe a policy for standalone.Network: a plan of plain values, and named arrays."""

from typing import Any

import torch
from torch import nn

from drl_cli.algos.base import Policy
from drl_cli.deploy.formats import find_head
from drl_cli.envs.units import Units
from drl_cli.networks.modules import Convolution, Flat, Multi, Residual
from drl_cli.runtime.roles.normalization import NormalizedPolicy
from drl_cli.types import MASK, Array, EnvSpec, State, leaves

ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.ELU: "elu"}


def plan(policy: Policy, spec: EnvSpec, units: Units) -> tuple[dict[str, Any], State]:
    """Return the plan, and the arrays by name. `formats.check` says which policies have a plan."""
    names = {path: part.name for path, part in zip(leaves(spec.obs), units.inputs, strict=True)}
    arrays: State = {}
    bound = None
    if isinstance(policy, NormalizedPolicy):
        bound = policy.statistics.bound if policy.statistics.count else None
        for path, (mean, scale) in policy.statistics.obs.items() if bound else ():
            arrays |= {f"{names[path]}.mean": mean, f"{names[path]}.scale": scale}
        policy = policy.policy
    head = find_head(policy)
    assert head is not None  # formats.check refuses other policies
    arrays |= {f"head.{i}": array for i, array in enumerate(head.layers)}
    arrays |= {f"trunk.{i}": array for i, array in enumerate(head.trunk)}
    constants = {"embedded": head.embedded, "support": head.support}
    arrays |= {name: array for name, array in constants.items() if array is not None}
    torsos = _torsos(head.torso, arrays)
    if head.memory:
        (weights,) = head.memory.cell.all_weights
        arrays |= {f"memory.{i}": _array(weight) for i, weight in enumerate(weights)}
    return {
        "bound": bound,
        "torsos": [torso | {"input": names[path]} for path, torso in torsos.items()],
        "flat": [name for path, name in names.items() if path != MASK and path not in torsos],
        "memory": None if head.memory is None else "lstm" if head.memory.is_lstm else "gru",
        "trunk": len(head.trunk),
        "head": len(head.layers),
        "risk": list(head.risk),
        "trunk_activation": head.trunk_activation,
        "norms_trunk": head.norms_trunk,
        "activation": head.activation,
        "layer_norm": head.layer_norm,
        "is_squashed": head.is_squashed,
        "components": head.components,
        "choices": list(spec.action.choices),
    }, arrays


def _torsos(torso: nn.Module, arrays: State) -> dict[str, dict[str, Any]]:
    """Return the plan of the torso of each image, by the image's path. Add the weights to `arrays`."""
    if isinstance(torso, Flat):
        return {}
    each = dict(zip(torso.paths, torso.torsos, strict=True)) if isinstance(torso, Multi) else {"": torso}
    plans = {}
    for i, (path, one) in enumerate(each.items()):
        assert isinstance(one, Convolution)
        shape, axes = one.image.layout
        sides, layers = [one.image.height, one.image.width], _layers(f"torso.{i}", one.layers, arrays)
        plans[path] = {"shape": shape, "axes": axes, "sides": sides, "layers": layers}
    return plans


def _layers(name: str, layers: nn.Module, arrays: State) -> list[Any]:
    found: list[Any] = []
    for key, layer in layers.named_children():
        path = f"{name}.{key}"
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is not None
            arrays |= {f"{path}.weight": _array(layer.weight), f"{path}.bias": _array(layer.bias)}
            found.append(["conv", path, layer.stride[0], layer.padding[0]])
        elif isinstance(layer, nn.MaxPool2d):
            found.append(["pool", layer.kernel_size, layer.stride, layer.padding])
        elif isinstance(layer, Residual):
            found.append(["residual", _layers(path, layer.layers, arrays)])
        else:
            found.append([ACTIVATIONS[type(layer)]])
    return found


def _array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.detach().numpy().copy()
    return array
