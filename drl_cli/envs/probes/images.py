"""Probes with one step per episode, in which the best action follows from the position of a patch in an image."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from drl_cli.envs.probes.answers import OneStep
from drl_cli.types import Array

PATCH = 12
"""Height and width of the bright patch in pixels."""


class Patch(OneStep):
    """The best of four choices is the quadrant of an image `[size, size, 4]` that contains the bright patch.

    The choices are 0 (upper left), 1 (upper right), 2 (lower left) and 3 (lower right). The reward is 1 for the right
    choice, else 0. A network that averages convolutions without padding over all positions reaches only 0.25.
    """

    def __init__(self, size: int = 84) -> None:
        self.size = size
        self.observation_space = Box(0, 255, (size, size, 4), np.uint8)
        self.action_space = Discrete(4)

    def draw(self) -> Any:
        self.goal, half = int(self.np_random.integers(4)), self.size // 2
        return _image(self.size, np.array(divmod(self.goal, 2)) * half + self._corner(half, half))

    def _corner(self, height: int, width: int) -> Array:
        """Return a random upper left corner [down, right] for a patch inside a rectangle."""
        return self.np_random.integers([height - PATCH + 1, width - PATCH + 1])


class PatchReach(Patch):
    """The best action is the position of the patch in an image `[size, size, 4]`: [down, right], each in [-1, 1].

    The reward is minus the squared distance to the best action, at most 0. A network that averages convolutions without
    padding over all positions reaches only about -2/3.
    """

    def __init__(self, size: int = 84) -> None:
        super().__init__(size)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def draw(self) -> Any:
        corner = self._corner(self.size, self.size)
        self.goal = 2.0 * corner / (self.size - PATCH) - 1.0
        return _image(self.size, corner)

    def reward(self, action: Array) -> float:
        return -float(np.square(action - self.goal).sum())


class Both(Patch):
    """The best choice depends on both parts of the observation: the patch (left or right) and `vector` ([1] or [-1]).

    Choice 0 is best for (left, 1) and (right, -1), else choice 1 is best. The reward is 1 for the best choice, else 0.
    A policy that sees only one part reaches 0.5.
    """

    def __init__(self, size: int = 84) -> None:
        super().__init__(size)
        self.observation_space = Dict(image=self.observation_space, vector=Box(-1.0, 1.0, (1,), np.float32))
        self.action_space = Discrete(2)

    def draw(self) -> Any:
        is_right, is_negative = self.np_random.integers(2, size=2)
        half = self.size // 2
        image = _image(self.size, self._corner(self.size, half) + np.array([0, is_right * half]))
        self.goal = is_right ^ is_negative
        return {"image": image, "vector": np.array([1 - 2 * is_negative], np.float32)}


class BothReach(Both):
    """The best action is [position of the patch from left to right, `vector`], both in [-1, 1].

    The reward is minus the squared distance to the best action, at most 0. A policy that sees only one part reaches
    about -1/3.
    """

    def __init__(self, size: int = 84) -> None:
        super().__init__(size)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def draw(self) -> Any:
        corner = self._corner(self.size, self.size)
        vector = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        self.goal = np.array([2.0 * corner[1] / (self.size - PATCH) - 1.0, vector[0]])
        return {"image": _image(self.size, corner), "vector": vector}

    def reward(self, action: Array) -> float:
        return -float(np.square(action - self.goal).sum())


def _image(size: int, corner: Array) -> Array:
    image = np.zeros((size, size, 4), np.uint8)
    y, x = corner.tolist()
    image[y : y + PATCH, x : x + PATCH] = 255
    return image
