"""Environments of many kinds of spaces, and what is recorded of them."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from drl_cli.data.draft import Episode
from drl_cli.data.write import Header
from drl_cli.envs.config import EnvConfig
from drl_cli.envs.trees import parts_of

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


def episodes(kind, count=5, seed=0):
    """Yield random episodes of an environment's spaces. The first terminates, the others are cut."""
    observations, actions = SPACES[kind]
    observations.seed(seed)
    actions.seed(seed)
    for i in range(count):
        length = 3 + i
        obs = [parts_of(observations.sample()) for _ in range(length + 1)]
        action = [parts_of(actions.sample()) for _ in range(length)]
        ends = np.arange(length) == length - 1
        yield Episode(
            {path: np.stack([each[path] for each in obs]) for path in obs[0]},
            {path: np.stack([each[path] for each in action]) for path in action[0]},
            np.random.default_rng(i).normal(size=length),
            ends & (i == 0),
            ends & (i > 0),
            seed=i,
        )


def header(kind, **changes):
    """Return the header of a recording of TestSampler-v0."""
    return Header("TestSampler-v0", SPACES[kind], gymnasium.spec("TestSampler-v0"), **changes)
