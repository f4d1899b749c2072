"""Aim-v0: choose the best of nine actions in a context, from very noisy rewards.

The learning rate decides how far a learner gets. All values start far from 0, by `offset`. A high rate reaches them
soon but stays as far away as the noise throws it; a low rate gets closer in the end. So the best rate falls during
training.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

SIZE, ACTIONS, STEPS = 6, 9, 50


class Aim(gymnasium.Env):
    """Every one of the 50 steps draws a new context. `noise` is the standard deviation of the rewards.

    The reward is the value of the action minus the value of the best action, plus offset and noise.
    """

    observation_space = Box(-1, 1, (SIZE,), np.float32)
    action_space = Discrete(ACTIONS)

    def __init__(self, noise: float = 0.0, offset: float = 0.0) -> None:
        self.noise, self.offset, self.count = noise, offset, 0
        rng = np.random.default_rng(0)
        self.inner, self.outer = rng.normal(size=(SIZE, 32)), rng.normal(size=(32, ACTIONS)) / 32**0.5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._draw(), {}

    def step(self, action):
        values = np.tanh(self.obs @ self.inner) @ self.outer
        reward = self.offset + values[action] - values.max() + self.noise * self.np_random.normal()
        self.count += 1
        return self._draw(), float(reward), False, self.count == STEPS, {}

    def _draw(self):
        self.obs = self.np_random.uniform(-1, 1, SIZE).astype(np.float32)
        return self.obs


gymnasium.register("Aim-v0", Aim)
