import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from drl_cli.envs.config import EnvConfig
from drl_cli.envs.make import read_spec
from drl_cli.envs.probes import Frames, stamp
from drl_cli.types import Column, FrameStack


class Images(gymnasium.Env):
    """Images that change in one of several ways, as one array that is changed in place."""

    def __init__(self, shape=(6, 5, 4), change="new", dtype=np.uint8, length=7):
        self.observation_space, self.action_space = Box(0, 255, shape, dtype), Discrete(2)
        self.change, self.length = change, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.obs = self.np_random.integers(256, size=self.observation_space.shape).astype(np.uint8)
        return self.obs, {}

    def step(self, action):
        self.count += 1
        if self.change == "new":
            self.obs[:] = self.np_random.integers(256, size=self.obs.shape)
        elif self.change == "shift":
            self.obs[..., :-1] = self.obs[..., 1:].copy()
            self.obs[..., -1] = self.np_random.integers(256, size=self.obs.shape[:-1])
        elif self.change == "shift rgb":
            self.obs[..., :-3] = self.obs[..., 3:].copy()
            self.obs[..., -3:] = self.np_random.integers(256, size=(*self.obs.shape[:-1], 3))
        elif self.change == "once" and self.count == 3:
            self.obs += 1
        return self.obs.astype(self.observation_space.dtype), 0.0, self.count == self.length, False, {}


gymnasium.register("TestImages-v0", Images)


def spec(id="TestImages-v0", how="auto", **kwargs):
    return read_spec(EnvConfig("test", id, kwargs, None, 1.0, how, False, False))


@pytest.mark.parametrize(
    ("kwargs", "stack"),
    [
        ({"change": "new"}, FrameStack(-1, 1)),
        ({"change": "nothing"}, FrameStack(-1, 1)),  # what never changes proves nothing
        ({"change": "once"}, FrameStack(-1, 1)),
        ({"change": "shift"}, FrameStack(-1, 4)),
        ({"change": "shift", "length": 1}, FrameStack(-1, 4)),
        ({"change": "shift", "shape": (6, 5, 3)}, FrameStack(-1, 3)),
        ({"change": "shift rgb", "shape": (6, 5, 9)}, FrameStack(-1, 3)),
        ({"change": "new", "shape": (6, 5)}, FrameStack(-1, 1)),
        ({"change": "new", "shape": (6,)}, None),
        ({"change": "shift", "dtype": np.float32}, None),
    ],
)
def test_stacks(kwargs, stack):
    assert spec(**kwargs).frame_stacks == ({} if stack is None else {"": stack})
    assert spec(how="none", **kwargs).frame_stacks == {}


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 12, 12)), (-1, (12, 12, 3))])
def test_the_stack_of_the_probe(axis, shape):
    found = spec("drl_cli.envs.probes:Frames-v0", axis=axis, k=3, size=12)
    assert (found.obs, found.frame_stacks) == (Column(shape, "uint8"), {"": FrameStack(axis, 3)})


def test_stack_of_gymnasiums_wrapper():
    def make():
        env = gymnasium.wrappers.FrameStackObservation(Frames(k=1, size=12), 4)
        return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[..., 0], Box(0, 255, (4, 12, 12), np.uint8))

    gymnasium.register("TestStacked-v0", make)
    assert spec("TestStacked-v0").frame_stacks == {"": FrameStack(0, 4)}


def test_frames_differ_and_depend_on_the_seed():
    runs = []
    for seed in (3, 3, 4):
        env, frames = Frames(), []
        obs, _ = env.reset(seed=seed)
        assert (obs == obs[..., :1]).all()
        for _ in range(200):
            frames.append(obs[..., -1].copy())
            obs, _, terminated, truncated, _ = env.step(0)
            assert obs.shape == (84, 84, 4)
            if terminated or truncated:
                obs, _ = env.reset()
        runs.append(np.stack(frames))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len({frame.tobytes() for run in (runs[0], runs[2]) for frame in run}) == 400
    assert stamp(runs[0])[:2].tolist() == [[3, 0, 0], [3, 0, 1]]
