"""Environments of many kinds of spaces, and what is recorded of them."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from drl_cli.envs.config import EnvConfig

PARTS = Dict(
    {
        "eye": Box(0, 255, (32, 32, 3), np.uint8),
        "arm": Tuple((Box(-1, 1, (2,), np.float64), Discrete(4, start=2))),
        "mode": MultiDiscrete([2, 3]),
        "bits": MultiBinary(3),
    }
)
SPACES = {
    "box": (Box(-np.inf, np.inf, (3,), np.float64), Box(np.array([-2, 0]), np.array([2, 1]), dtype=np.float32)),
    "dict": (PARTS, Discrete(5, start=3)),
    "tuple": (Discrete(7, start=-2), Dict({"move": MultiDiscrete([2, 3]), "jump": Discrete(2, start=1)})),
}


class Sampler(gymnasium.Env):
    """Samples observations. Episodes of even length terminate, the others are cut."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, kind="box"):
        self.observation_space, self.action_space = SPACES[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps, self.length = 0, int(self.np_random.integers(3, 9))
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        is_last = self.steps == self.length
        ends = (is_last and self.length % 2 == 0, is_last and self.length % 2 == 1)
        return self.observation_space.sample(), float(self.np_random.normal()), *ends, {}


gymnasium.register("TestSampler-v0", "recorded_envs:Sampler")


def env_config(kind="box", id="TestSampler-v0", **kwargs):
    kwargs = {"kind": kind} if id == "TestSampler-v0" else kwargs
    return EnvConfig("sampler", id, kwargs, None, 1.0, "auto", False, False)
