"""Convert an environment's observations to arrays: one array for each part of a Dict or Tuple space."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from drl_cli.envs.config import EnvError, EnvFault
from drl_cli.envs.trees import Path, Space, space_leaves
from drl_cli.types import MASK, ActionSpec, Array, Column, EnvSpec, ObsSpec, leaves

Parts = dict[str, Array]
"""The parts of one observation, by path. An observation without parts has the path ""."""


def obs_spec(id: str, space: Space, action: ActionSpec, info: Mapping[str, Any]) -> ObsSpec:
    """Return the columns of observations. They include the legal-action mask if the space or `info` has one.

    `info` is the info of the first reset. Raise EnvError if a part of the space is not supported.
    """
    columns = {path: _column(id, path, part) for path, _, part in walk(id, space)}
    own, mask = columns.pop(MASK, None), Column((action.size,), "bool")
    if own is not None and action.kind == "box":
        raise EnvError(f"env: {id} has an {MASK} and {action.text} actions; masks are for choices. Rename or drop it.")
    if own is not None and own.shape != mask.shape:
        raise EnvError(f"env: {id} has an {MASK} of shape {own.shape}; {action.text} actions need {mask.shape}")
    if own is None and (action.kind == "box" or MASK not in info):
        return columns.get("", columns)
    if not columns:
        raise EnvError(f"env: {id} has no observations besides its {MASK}")
    return {path or "obs": column for path, column in columns.items()} | {MASK: mask}


def walk(id: str, space: Space) -> Iterator[tuple[str, Path, Space]]:
    """Yield, for each leaf of the space, its path as dotted text, its path as a tuple, and the space of the leaf.

    Raise EnvError if a key is empty or contains a dot.
    """
    for path, part in space_leaves(space):
        keys = [str(key) for key in path]
        if bad := [key for key in keys if not key or "." in key]:
            raise EnvError(f"env: {id} has the key {bad[0]!r} in its observations; keys must have a name without a dot")
        yield ".".join(keys), path, part


def _column(id: str, path: str, space: Space) -> Column:
    if isinstance(space, spaces.Box):
        kept = {np.dtype(np.uint8): "uint8", np.dtype(np.bool_): "bool"}
        return Column(tuple(space.shape), kept.get(space.dtype, "float32"))
    if isinstance(space, spaces.MultiBinary):
        return Column(tuple(space.shape), "bool")
    if isinstance(space, spaces.Discrete):
        return Column((), "int32", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return Column(tuple(space.shape), "int32", tuple(space.nvec.ravel().tolist()))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise EnvError(f"env: {id} has {_place(path)} an empty {type(space).__name__}")
    raise EnvError(
        f"env: {id} has {_place(path)} {space}, which is not handled; Box, Discrete, MultiDiscrete, MultiBinary, and "
        "Dict and Tuple of these are. Wrap it: env.wrappers=[my_mod:MyWrapper]"
    )


def _place(path: str) -> str:
    return f"in its observations, at {path!r}," if path else "observations of"


class ObsMap:
    """Converts observations, and a mask in `info`, to arrays with the shapes of the spec. Choices count from 0.

    If a mask allows no choice of a component, the result allows all choices of this component.
    """

    def __init__(self, space: Space, spec: EnvSpec) -> None:
        self.columns = leaves(spec.obs)
        parts = list(walk(spec.id, space))
        self._paths = {name: path for name, path, _ in parts}
        self._choices = spec.action.choices
        self._wants_info = MASK in self.columns and MASK not in self._paths
        self.root = "obs" if self._wants_info else ""  # path of an observation without parts
        self._starts = {name or self.root: part.start for name, _, part in parts if hasattr(part, "start")}
        self.is_single_box = isinstance(space, spaces.Box) and not self._wants_info

    def __call__(self, obs: Any, info: Mapping[str, Any]) -> Parts:
        """Return the parts of an observation. Raise EnvFault if a part does not fit its space."""
        if self.is_single_box:  # shortcut, because small environments are reset often
            return {"": self._read("", self.columns[""], obs)}
        found = {name: _value(obs, path) for name, path in self._paths.items()}
        if self._wants_info:
            if MASK not in info:
                raise EnvFault(f"info has no {MASK}, and at the first reset it had one")
            found = {path or self.root: part for path, part in found.items()} | {MASK: info[MASK]}
        return {path: self._read(path, column, found[path]) for path, column in self.columns.items()}

    def rows(self, parts: Mapping[str, Array]) -> Parts:
        """Return recorded observations by path `[n, ...]`, with the dtypes of the spec. Raise EnvFault as a call."""
        return {
            path: self._read(path, column, parts[path], axes=1).astype(column.dtype, copy=False)
            for path, column in self.columns.items()
        }

    def _read(self, path: str, column: Column, value: Any, axes: int = 0) -> Array:
        """Return a part of one observation, or of many if `axes` is 1."""
        if path == MASK and isinstance(value, tuple):  # a tuple of one mask for each component
            value = np.concatenate(value)
        array: Array = np.asarray(value)
        if array.shape[axes:] != column.shape:
            raise EnvFault(f"observation{at(path)} has shape {array.shape[axes:]}, expected {column.shape}")
        if column.choices:
            array = array - self._starts[path]
            if not ((array >= 0) & (array < np.reshape(column.choices, column.shape))).all():
                raise EnvFault(f"observation{at(path)} is outside its space")
        if path == MASK:
            array = array.astype(np.bool_)
            for choices in np.split(array, np.cumsum(self._choices[:-1]), -1):  # views
                choices |= ~choices.any(-1, keepdims=True)
        return array


def outside_box(id: str, space: Space, obs: Any) -> str | None:
    """Return a line that names the first value outside a Box of the space, or None. Rounding errors do not count."""
    for name, path, part in walk(id, space):
        if not isinstance(part, spaces.Box) or part.dtype.kind != "f":
            continue
        value = np.asarray(_value(obs, path), np.float64)
        low, high = (bound.astype(np.float64) for bound in (part.low, part.high))
        bad = np.argwhere((value < low - 1e-5 * (1 + np.abs(low))) | (value > high + 1e-5 * (1 + np.abs(high))))
        if len(bad):
            i = tuple(bad[0].tolist())
            bounds = f"[{low[i]:g}, {high[i]:g}]"
            return f"observation{at(name)}{list(i) or ''} is {value[i]:.6g}, outside its Box {bounds}"
    return None


def _value(obs: Any, path: Path) -> Any:
    for i, key in enumerate(path):
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            raise EnvFault(f"observation has no {'.'.join(map(str, path[: i + 1]))!r}") from error
    return obs


def at(path: str) -> str:
    """Return the quoted path of a part for a message, or an empty text for an observation without parts."""
    return f" {path!r}" if path else ""
