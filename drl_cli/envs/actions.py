"""From the policy's actions to the environment's own."""

from typing import Any

import numpy as np
from gymnasium import spaces

from drl_cli.types import Array


class ActionMap:
    """Actions in [-1, 1] or choices from 0, `[n, ...]`, as a space's own: low + (a + 1) / 2 (high - low), its start."""

    def __init__(self, space: Any) -> None:  # Any: a Box or a Discrete
        self._is_box = isinstance(space, spaces.Box)
        if self._is_box:
            self._low = space.low.astype(np.float64).ravel()
            self._scale = (space.high.astype(np.float64).ravel() - self._low) / 2
            self._shape, self._dtype = space.shape, space.dtype
        else:
            self._offset = int(space.start)

    def __call__(self, actions: Array) -> Any:  # Any: whatever the environment takes
        """Box actions as an array `[n, ...]`, clipped to the space; choices as a list."""
        if not self._is_box:
            return (actions + self._offset).tolist()
        scaled = np.minimum(np.maximum(actions, -1.0), 1.0)  # unlike `clip` no slower for few values
        scaled = self._low + (scaled + 1.0) * self._scale
        return scaled.astype(self._dtype).reshape(len(actions), *self._shape)
