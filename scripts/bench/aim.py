"""Aim-v0: which of nine actions is best in a context, from rewards of which most is noise.

How far a learner gets is a matter of its learning rate. All values are far from 0, by `offset`: a high rate is soon
near them, and stays as far from them as the noise throws it; a low one comes nearer, in the end. So the best rate falls
while it trains.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

SIZE, ACTIONS, STEPS = 6, 9, 50


class Aim(gymnasium.Env):
    """Contexts are drawn independently, at each of an episode's 50 steps; `noise` is the rewards' standard deviation.

    The reward is the value of the action less that of the best, so 0 at most, with the offset and the noise.
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
