"""Environments with every kind of space, for example `env=everything:Everything-v0`."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple


class Everything(gymnasium.Env):
    """Observations and actions are trees, rewards are sums of the actions plus `bonus`, episodes have 12 steps.

    With `discrete`, actions are choices of all kinds instead of boxes. With `masked`, `info` has a mask.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, discrete=False, masked=False, bonus=0.0, render_mode=None):
        self.masked, self.bonus, self.render_mode = masked, bonus, render_mode
        inner = Tuple((Discrete(4, start=-2), MultiDiscrete([3, 2], start=[0, 5]), MultiBinary(3)))
        who = Box(-np.inf, np.array([1.0, np.inf]), (2,), np.float64)
        none = Box(-1.0, 1.0, (0,), np.float32)
        self.observation_space = Dict(camera=Box(0, 255, (9, 8, 2), np.uint8), inner=inner, none=none, who=who)
        boxes = (Box(0.0, np.array([[1.0], [3.0]]), (2, 1), np.float64), Box(-0.1, np.inf, (2,), np.float32))
        choices = (MultiDiscrete([3, 2], start=[1, 7]), MultiBinary(2))
        move = Discrete(4, start=-2) if discrete else Box(-2.0, 4.0, (1,), np.float32)
        self.action_space = Dict(move=move, turn=Tuple(choices if discrete else boxes))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self._obs()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        reward = self.bonus + float(np.sum(action["move"])) + sum(float(np.sum(part)) for part in action["turn"])
        obs, info = self._obs()
        return obs, reward, self.count == 12, False, info

    def render(self):
        return np.full((50, 60, 3), 10 * self.count, np.uint8)

    def _obs(self):
        info = {"action_mask": self.np_random.random(13) < 0.5} if self.masked else {}
        return self.observation_space.sample(), info


class Stacked(gymnasium.Env):
    """Image observations uint8 `[3, 38, 40]`, stacked along the first axis as in Gymnasium."""

    observation_space = Box(0, 255, (3, 38, 40), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0 + float(np.sum(action)), self.np_random.random() < 0.2, False, {}


class Free(Stacked):
    """Only one dimension of the action has both bounds."""

    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Box(np.array([-np.inf, -0.1, -1.0]), np.array([np.inf, np.inf, 2.0]), (3,), np.float64)


class Drawn(Free):
    """An environment whose `render` raises."""

    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        raise ValueError("no brush")


class Steered(Stacked):
    """Images, and actions in a box."""

    action_space = Box(-2.0, 1.0, (2,), np.float32)


class Looked(Stacked):
    """An image and a vector, and discrete actions."""

    observation_space = Dict(camera=Stacked.observation_space, speed=Box(-1.0, 1.0, (3,), np.float32))


class Seen(Looked):
    """An image and a vector, and actions in a box."""

    action_space = Steered.action_space


KINDS = {"Drawn": Drawn, "Everything": Everything, "Looked": Looked, "Seen": Seen, "Stacked": Stacked}
for name, kind in {**KINDS, "Steered": Steered, "Unbounded": Free}.items():
    gymnasium.register(f"{name}-v0", kind)
