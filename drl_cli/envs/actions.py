"""From the policy's actions to the environment's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from drl_cli.envs.config import EnvError
from drl_cli.envs.trees import Space, inner, space_leaves
from drl_cli.types import ActionSpec, Array

CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def action_spec(id: str, space: Space) -> ActionSpec:
    """What a policy outputs for a space; raises EnvError naming one that can't be handled.

    Dict and Tuple spaces are one box where all their parts are Box, one multidiscrete where all are choices.
    """
    parts = [part for _, part in space_leaves(space)]
    if parts and all(isinstance(part, spaces.Box) for part in parts):
        return ActionSpec("box", _width(space), _text(space), is_free=unbounded(space) > 0)
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", int(space.n), _text(space))
    if parts and all(isinstance(part, CHOICES) for part in parts):
        choices = tuple(n for part in parts for n in _choices(part))
        return ActionSpec("multidiscrete", sum(choices), _text(space), choices)
    handled = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of Box alone or of the others alone are"
    raise EnvError(f"env: {id} has {space} actions, which are not handled; {handled}")


def unbounded(space: Space) -> int:
    """How many dimensions of a box have no lower or no upper bound."""
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
    return f"Discrete({space.n})" if isinstance(space, spaces.Discrete) else str(space)


class ActionMap:
    """Actions in [-1, 1] or choices from 0, `[n, ...]`, as a space's own: low + (a + 1) / 2 (high - low), its start.

    A dimension of a box that has not both bounds takes the policy's values as they are, clipped to the one it may have.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._convert: Callable[[Array], Any] = self._to_array  # Any: whatever the environment takes
        if isinstance(space, spaces.Box):
            low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
            is_free = ~(np.isfinite(low) & np.isfinite(high))
            self._free = (is_free, low, high) if is_free.any() else None
            self._low = np.where(is_free, 0.0, low)
            self._scale = np.where(is_free, 0.0, high - self._low) / 2
            self._convert = self._to_box
        elif isinstance(space, spaces.Discrete):
            self._offset = int(space.start)
            self._convert = self._to_choices
        elif (parts := inner(space)) is not None:
            self._parts = {key: ActionMap(part) for key, part in parts.items()}
            self._ends = np.cumsum([_width(part) for part in parts.values()])[:-1]
            self._convert = self._to_trees

    def __call__(self, actions: Array) -> Any:
        """An action for each row: of a box an array `[n, ...]`, clipped to the space."""
        return self._convert(actions)

    def _to_box(self, actions: Array) -> Array:
        scaled = np.minimum(np.maximum(actions, -1.0), 1.0)  # unlike `clip` no slower for few values
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
        given = [part(share[:, 0] if isinstance(part._space, spaces.Discrete) else share) for part, share in shares]
        rows = list(zip(*given, strict=True))
        return (
            [dict(zip(self._parts, row, strict=True)) for row in rows] if isinstance(self._space, spaces.Dict) else rows
        )


def _width(space: Space) -> int:
    """Values of an action of a space that is handled."""
    return sum(int(np.prod(leaf.shape or ())) for _, leaf in space_leaves(space))
