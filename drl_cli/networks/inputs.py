"""Inputs: flattens observations into the inputs `[n, size]` of an MLP, in numpy and in torch."""

import math
from collections.abc import Mapping

import numpy as np

from drl_cli.types import MASK, Array, Column, Obs, ObsSpec, leaves
from drl_cli.utils.lazy import Tensor, torch


def visible(obs: ObsSpec) -> ObsSpec:
    """Return the spec of what networks see of an observation: everything except the legal-action mask."""
    return obs if isinstance(obs, Column) else {path: part for path, part in obs.items() if path != MASK}


def width(column: Column) -> int:
    """Return the number of an MLP's inputs for a column. A choice among n values needs n inputs (one-hot)."""
    return sum(column.choices) or math.prod(column.shape)


class Inputs:
    """Turns observations `[n, ...]` into float32 inputs `[n, size]`, with bit-equal results in numpy and torch.

    Booleans become 0 and 1, choices become one-hot vectors, bytes are scaled to [0, 1], and images are flattened. The
    entries of a Dict or Tuple are joined. The legal-action mask is left out.
    """

    def __init__(self, obs: ObsSpec) -> None:
        self.parts = leaves(visible(obs))  # by path; an observation without parts has the path ""
        self.size = sum(width(column) for column in self.parts.values())

    def array(self, obs: Obs) -> Array:
        """Return the inputs `[n, size]` as an array, which may be a view of `obs`."""
        if isinstance(obs, np.ndarray):
            return _array(obs, self.parts[""])
        return np.concatenate([_array(obs[path], column) for path, column in self.parts.items()], 1)

    def tensor(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the inputs `[n, size]` as a tensor, which may be a view of `obs`."""
        if isinstance(obs, torch.Tensor):
            return _tensor(obs, self.parts[""])
        return torch.cat([_tensor(obs[path], column) for path, column in self.parts.items()], 1)


def _array(obs: Array, column: Column) -> Array:
    if column.choices:
        one_hot = np.zeros((len(obs), width(column)), np.float32)
        np.put_along_axis(one_hot, obs.reshape(len(obs), -1) + _first_inputs(column), 1.0, 1)
        return one_hot
    if obs.ndim == 2 and obs.dtype == np.float32:  # nothing to convert
        return obs
    x = obs.reshape(len(obs), math.prod(obs.shape[1:])).astype(np.float32, copy=False)
    return x * np.float32(1 / 255) if obs.dtype == np.uint8 else x


def _tensor(obs: Tensor, column: Column) -> Tensor:
    if column.choices:
        first = torch.from_numpy(_first_inputs(column)).to(obs.device)
        # obs.shape[0] in place of len(obs), which would be a constant in an exported policy
        one_hot = torch.zeros(obs.shape[0], width(column), device=obs.device)
        return one_hot.scatter_(1, obs.reshape(obs.shape[0], -1) + first, 1.0)
    if obs.ndim == 2 and obs.dtype == torch.float32:  # nothing to convert
        return obs
    x = obs.reshape(obs.shape[0], width(column)).float()  # flatten(1) needs two axes; a single number has one
    return x.mul_(1 / 255) if obs.dtype == torch.uint8 else x


def _first_inputs(column: Column) -> Array:
    """Return the index of the first one-hot input of each choice, for k choices `[k]`."""
    return np.cumsum((0, *column.choices[:-1]))
