"""Probes of one step whose right answer is where something is in an image."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from drl_cli.types import Array

Info = dict[str, Any]

PATCH = 12
"""Pixels of the bright patch, in either direction; it is the same wherever it is."""


class Patch(gymnasium.Env[Array, np.int64]):
    """Which quadrant of an image, `[size, size, 4]`, has the bright patch: upper left 0, upper right 1, lower 2 and 3.

    The reward is 1 or 0: at best 1; 0.25 for a network that averages over positions of convolutions without borders.
    """

    def __init__(self, size: int = 84) -> None:
        self.size = size
        self.observation_space = Box(0, 255, (size, size, 4), np.uint8)
        self.action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.goal, half = int(self.np_random.integers(4)), self.size // 2
        corner = np.array(divmod(self.goal, 2)) * half + self.np_random.integers(half - PATCH + 1, size=2)
        self.image = _image(self.size, corner)
        return self.image, {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        return self.image, float(action == self.goal), True, False, {}


class PatchReach(gymnasium.Env[Array, Array]):
    """Where in an image, `[size, size, 4]`, the bright patch is: [down, right], each in [-1, 1].

    The reward is minus the squared distance: at best 0; about -2/3 for a network that averages over positions of
    convolutions without borders.
    """

    def __init__(self, size: int = 84) -> None:
        self.size = size
        self.observation_space = Box(0, 255, (size, size, 4), np.uint8)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        room = self.size - PATCH
        corner = self.np_random.integers(room + 1, size=2)
        self.image, self.goal = _image(self.size, corner), 2.0 * corner / room - 1.0
        return self.image, {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        return self.image, -float(np.square(action - self.goal).sum()), True, False, {}


class Both(gymnasium.Env[Any, np.int64]):
    """The bright patch of `image` is on its left or right, `vector` is [1] or [-1]: both are needed.

    Right is choice 0 for left and 1 or right and -1, else choice 1. The reward is 1 or 0: at best 1; 0.5 from one part.
    """

    def __init__(self, size: int = 84) -> None:
        self.size = size
        image, vector = Box(0, 255, (size, size, 4), np.uint8), Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = Dict(image=image, vector=vector)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        is_right, is_negative = self.np_random.integers(2, size=2)
        half = self.size // 2
        down, right = self.np_random.integers(self.size - PATCH + 1), self.np_random.integers(half - PATCH + 1)
        image = _image(self.size, np.array([down, is_right * half + right]))
        self.goal, self.obs = (
            is_right ^ is_negative,
            {"image": image, "vector": np.array([1 - 2 * is_negative], np.float32)},
        )
        return self.obs, {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, Info]:
        return self.obs, float(action == self.goal), True, False, {}


class BothReach(gymnasium.Env[Any, Array]):
    """The first value of the action is to be the patch's place in `image`, left to right, the second is `vector`.

    Both are in [-1, 1]. The reward is minus the squared distance: at best 0; about -1/3 from one part.
    """

    def __init__(self, size: int = 84) -> None:
        self.size = size
        image, vector = Box(0, 255, (size, size, 4), np.uint8), Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = Dict(image=image, vector=vector)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        room = self.size - PATCH
        corner = self.np_random.integers(room + 1, size=2)
        vector = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        self.goal = np.array([2.0 * corner[1] / room - 1.0, vector[0]])
        self.obs = {"image": _image(self.size, corner), "vector": vector}
        return self.obs, {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, Info]:
        return self.obs, -float(np.square(action - self.goal).sum()), True, False, {}


def _image(size: int, corner: Array) -> Array:
    image = np.zeros((size, size, 4), np.uint8)
    y, x = corner.tolist()
    image[y : y + PATCH, x : x + PATCH] = 255
    return image
