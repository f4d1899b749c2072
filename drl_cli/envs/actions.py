"""Convert the actions of a policy to actions of the environment's space."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from drl_cli.envs.config import EnvError, EnvFault
from drl_cli.envs.trees import Space, dotted, inner, space_leaves
from drl_cli.types import ActionSpec, Array

CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
ROUNDING = 1e-5
"""A recorded action this far outside [-1, 1] is a rounding error."""


def action_spec(id: str, space: Space) -> ActionSpec:
    """Return the ActionSpec of a policy for a space. Raise EnvError if the space is not supported.

    A Dict or Tuple space becomes one box if all its parts are Box spaces, or one multidiscrete if all its parts are
    discrete.
    """
    parts = [part for _, part in space_leaves(space)]
    if all(isinstance(part, spaces.Box) for part in parts):
        return ActionSpec("box", _width(space), _text(space), is_free=unbounded(space) > 0)
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", int(space.n), _text(space))
    if all(isinstance(part, CHOICES) for part in parts):
        choices = tuple(n for part in parts for n in _choices(part))
        return ActionSpec("multidiscrete", sum(choices), _text(space), choices)
    supported = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of Box only or without Box are"
    raise EnvError(f"env: {id} has {space} actions, which are not handled; {supported}")


def unbounded(space: Space) -> int:
    """Return the number of box dimensions that lack a lower bound, an upper bound or both."""
    boxes = [part for _, part in space_leaves(space) if isinstance(part, spaces.Box)]
    return sum(int((~(np.isfinite(box.low) & np.isfinite(box.high))).sum()) for box in boxes)


def _choices(space: Space) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    assert isinstance(space, spaces.MultiDiscrete)
    choices: list[int] = space.nvec.ravel().tolist()
    return choices


def _text(space: Space) -> str:
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    return f"Discrete({space.n})" if isinstance(space, spaces.Discrete) else " ".join(str(space).split())  # one line


class ActionMap:
    """Converts the actions `[n, ...]` of a policy to actions of a space.

    A box action a in [-1, 1] becomes low + (a + 1) / 2 (high - low). A dimension that lacks a bound is not rescaled,
    but only clipped to the other bound, if any. The discrete choices of a policy count from 0, and the `start` of the
    space is added to them.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        # Returns one action for each row; box actions are an array `[n, ...]`. Any: actions of the space
        self.convert: Callable[[Array], Any] = self._to_array
        if isinstance(space, spaces.Box):
            low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
            is_free = ~(np.isfinite(low) & np.isfinite(high))
            self._free = (is_free, low, high) if is_free.any() else None
            self._low = np.where(is_free, 0.0, low)
            self._scale = np.where(is_free, 0.0, high - self._low) / 2
            self.convert = self._to_box
        elif isinstance(space, spaces.Discrete):
            self._offset = int(space.start)
            self.convert = self._to_choices
        elif (parts := inner(space)) is not None:
            self._parts = {key: ActionMap(part) for key, part in parts.items()}
            self._ends = np.cumsum([_width(part) for part in parts.values()])[:-1]
            self.convert = self._to_trees

    def inverse(self, parts: Mapping[str, Array]) -> tuple[Array, int]:
        """Return the policy's actions `[n, ...]` for actions of the space, and how many box values were outside it.

        `parts` has an array `[n, ...]` for each leaf of the space, by dotted path. Values outside a box become its
        bounds. Raise EnvFault if shapes do not fit or a choice is outside its space.
        """
        columns, clamped = [], 0
        for path, part in space_leaves(self._space):
            name = dotted(path)
            values, shape = parts[name], tuple(part.shape or ())
            if values.shape[1:] != shape:
                raise EnvFault(f"action{f' {name!r}' if name else ''} has shape {values.shape[1:]}, expected {shape}")
            flat = values.reshape(len(values), _width(part))
            if isinstance(part, spaces.Box):
                column, outside = ActionMap(part)._from_box(flat)
                clamped += outside
            else:
                column = _from_choices(part, flat)
            columns.append(column)
        joined = np.concatenate(columns, -1)
        return joined[:, 0] if isinstance(self._space, spaces.Discrete) else joined, clamped

    def _from_box(self, values: Array) -> tuple[Array, int]:
        """Return actions `[n, size]` in [-1, 1], and how many values were outside the box by more than rounding."""
        free, wide = np.zeros(values.shape[1], np.bool_), self._scale > 0
        scaled = np.where(wide, (values - self._low) / np.where(wide, self._scale, 1.0) - 1.0, 0.0)
        bounded = np.clip(scaled, -1.0, 1.0)
        if self._free is not None:
            free, low, high = self._free
            scaled = np.where(free, values, scaled)
            bounded = np.where(free, np.clip(values, low, high), bounded)
        return bounded.astype(np.float32), int((np.abs(scaled - bounded) > ROUNDING).sum())

    def _to_box(self, actions: Array) -> Array:
        scaled = np.minimum(np.maximum(actions, -1.0), 1.0)  # faster than `np.clip` for small arrays
        scaled = self._low + (scaled + 1.0) * self._scale
        if self._free is not None:
            is_free, low, high = self._free
            scaled = np.where(is_free, np.clip(actions, low, high), scaled)
        return scaled.astype(self._space.dtype).reshape(len(actions), *(self._space.shape or ()))

    def _to_choices(self, actions: Array) -> list[int]:
        choices: list[int] = (actions + self._offset).tolist()
        return choices

    def _to_array(self, actions: Array) -> Array:
        values = actions.reshape(len(actions), *(self._space.shape or ())) + getattr(self._space, "start", 0)
        return values.astype(self._space.dtype)

    def _to_trees(self, actions: Array) -> list[Any]:
        shares = zip(self._parts.values(), np.split(actions, self._ends, -1), strict=True)
        given = [
            part.convert(share[:, 0] if isinstance(part._space, spaces.Discrete) else share) for part, share in shares
        ]
        rows = list(zip(*given, strict=True))
        return (
            [dict(zip(self._parts, row, strict=True)) for row in rows] if isinstance(self._space, spaces.Dict) else rows
        )


def _from_choices(space: Space, values: Array) -> Array:
    """Return the choices `[n, values]` of a discrete space, counted from 0. Raise EnvFault if one is outside it."""
    choices = values - np.ravel(getattr(space, "start", 0))
    is_choice = (choices >= 0) & (choices < np.array(_choices(space))) & (choices == np.floor(choices))
    if not is_choice.all():
        raise EnvFault(f"action {values[~is_choice][0]} is outside {space}")
    return choices.astype(np.int64)


def _width(space: Space) -> int:
    return sum(int(np.prod(leaf.shape or ())) for _, leaf in space_leaves(space))
