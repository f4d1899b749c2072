"""An environment is tried before a run: the steps, the end of an episode, masks."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.make import read_spec
from drl_cli.envs.trial import STEPS, try_env


class Endless(gymnasium.Env):
    """Its episodes have no end."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
    resets = steps = 0

    def reset(self, *, seed=None, options=None):
        Endless.resets += 1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Endless.steps += 1
        return np.zeros(2, np.float32), 1.0, False, False, {}


gymnasium.register("TestEndless-v0", Endless)


def config(id, **kwargs):
    return EnvConfig("test", id, kwargs, None, 1.0, "none", False, False)


def attempt(id, num=1, seconds=60.0, **kwargs):
    made = config(id, **kwargs)
    spec = read_spec(made)
    Endless.resets = Endless.steps = 0
    return try_env(made, spec, num=num, seconds=seconds, timeout_s=60.0)


@pytest.mark.parametrize("num", [1, 2])
def test_so_many_steps_and_a_second_reset_of_each(num):
    assert attempt("TestEndless-v0", num) == []
    assert (Endless.steps, Endless.resets) == (num * STEPS, num * 2)


def test_a_slow_one_takes_two_steps_at_least():
    assert attempt("TestEndless-v0", seconds=0.0) == []
    assert Endless.steps == 2


def test_what_fails_in_every_try_is_named_with_its_step():
    with pytest.raises(
        EnvFault, match="step raised RuntimeError: probe crashed at step 9, at step 9 of a trial with ran"
    ):
        attempt("drl_cli.envs.probes:Faulty-v0", at=9)
