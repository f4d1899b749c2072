"""Observations as the rows of a matrix: what a plain MLP takes in, in numpy and in torch alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from drl_cli.types import MASK, Array, Column, Obs, ObsSpec, leaves
from drl_cli.utils.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def visible(obs: ObsSpec) -> ObsSpec:
    """What networks see of an observation: all but the mask of allowed actions, which is for policies and targets."""
    return obs if isinstance(obs, Column) else {path: part for path, part in obs.items() if path != MASK}


def width(column: Column) -> int:
    """Numbers that such a part becomes: one for each value, or, of a choice, one for each that there is."""
    return sum(column.choices) or math.prod(column.shape)


class Inputs:
    """Turns observations `[n, ...]` into float32 `[n, width]`, part after part; numpy and torch agree to the last bit.

    Booleans become 0 and 1, choices one-hot, bytes come to lie in [0, 1]; an image is flattened; a mask is left out.
    """

    def __init__(self, obs: ObsSpec) -> None:
        self.parts = leaves(visible(obs))
        self.width = sum(width(column) for column in self.parts.values())

    def array(self, obs: Obs) -> Array:
        """In numpy; may be a view of `obs`."""
        if isinstance(obs, np.ndarray):
            return _array(obs, self.parts[""])
        return np.concatenate([_array(obs[path], column) for path, column in self.parts.items()], 1)

    def tensor(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """In torch; may be a view of `obs`."""
        if isinstance(obs, torch.Tensor):
            return _tensor(obs, self.parts[""])
        return torch.cat([_tensor(obs[path], column) for path, column in self.parts.items()], 1)


def flatten(obs: Tensor) -> Tensor:
    """Observations `[B, ...]` as float32 `[B, in]`; bytes come to lie in [0, 1]."""
    if obs.ndim == 2 and obs.dtype == torch.float32:
        return obs
    x = obs.flatten(1).float()
    return x.mul_(1 / 255) if obs.dtype == torch.uint8 else x


def flatten_numpy(obs: Obs) -> Array:
    """The same in numpy."""
    assert isinstance(obs, np.ndarray)
    if obs.ndim == 2 and obs.dtype == np.float32:
        return obs
    x = obs.reshape(len(obs), math.prod(obs.shape[1:])).astype(np.float32, copy=False)
    return x * np.float32(1 / 255) if obs.dtype == np.uint8 else x


def _starts(column: Column) -> Array:
    """Where the ones of each choice begin."""
    return np.cumsum((0, *column.choices[:-1]))


def _array(obs: Array, column: Column) -> Array:
    if not column.choices:
        return flatten_numpy(obs)
    one_hot = np.zeros((len(obs), width(column)), np.float32)
    np.put_along_axis(one_hot, obs.reshape(len(obs), -1) + _starts(column), 1.0, 1)
    return one_hot


def _tensor(obs: Tensor, column: Column) -> Tensor:
    if not column.choices:
        return flatten(obs)
    starts = torch.from_numpy(_starts(column)).to(obs.device)
    one_hot = torch.zeros(obs.shape[0], width(column), device=obs.device)  # len() would fix an exported batch's size
    return one_hot.scatter_(1, obs.reshape(len(obs), -1) + starts, 1.0)
