import time

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.make import read_spec
from drl_cli.envs.trials.trial import STEPS, try_env


class Endless(gymnasium.Env):
    """Episodes never end."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
    resets = steps = 0

    def reset(self, *, seed=None, options=None):
        Endless.resets += 1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Endless.steps += 1
        return np.zeros(2, np.float32), 1.0, False, False, {}


class DmControlTask:
    """The attributes of a task of dm_control that shimmy wraps."""

    def __init__(self, limits):
        vars(self).update(limits)


class Shimmy(Endless):
    """An environment of shimmy. It has no TimeLimit, because the task ends its episodes."""

    def __init__(self, limits):
        self._env = DmControlTask(limits)


gymnasium.register("TestEndless-v0", Endless)
gymnasium.register("TestShimmy-v0", Shimmy)
gymnasium.register("TestLimited-v0", Endless, max_episode_steps=500)


def config(id, **kwargs):
    return EnvConfig("test", id, kwargs, None, 1.0, "none", False, False)


def attempt(id, num=1, seconds=60.0, **kwargs):
    made = config(id, **kwargs)
    spec = read_spec(made)
    Endless.resets = Endless.steps = 0
    return try_env(made, spec, num=num, seconds=seconds, timeout_s=60.0)


@pytest.mark.parametrize("num", [1, 2])
def test_number_of_steps_and_resets(num):
    note = (
        "TestEndless-v0: no episode ended in 200 steps; "
        "if episodes never end, say env.max_episode_steps=1000 manage.max_episode_steps=1000, "
        "so that training sees the start again, and evaluations end"
    )
    assert (attempt("TestEndless-v0", num), (Endless.steps, Endless.resets)) == ([note], (num * STEPS, num * 2))


def test_a_registered_time_limit_ends_every_episode():
    assert attempt("TestLimited-v0") == []


@pytest.mark.parametrize("limits", [{"_step_limit": 1000.0}, {"_time_limit": 10}])
def test_the_time_limit_of_a_dm_control_task_ends_every_episode(limits):
    assert attempt("TestShimmy-v0", limits=limits) == []


@pytest.mark.parametrize("limits", [{"_step_limit": float("inf")}, {"_time_limit": None}, {}])
def test_a_dm_control_task_without_a_limit_gives_the_warning(limits):
    assert attempt("TestShimmy-v0", limits=limits) == [
        "TestShimmy-v0: no episode ended in 200 steps; "
        "if episodes never end, say env.max_episode_steps=1000 manage.max_episode_steps=1000, "
        "so that training sees the start again, and evaluations end"
    ]


def test_a_slow_environment_takes_at_least_two_steps():
    assert (attempt("TestEndless-v0", seconds=0.0), Endless.steps) == ([], 2)


def test_a_fault_in_every_trial_names_its_step():
    with pytest.raises(
        EnvFault, match="step raised RuntimeError: probe crashed at step 9, at step 9 of a trial with ran"
    ):
        attempt("drl_cli.envs.probes:Faulty-v0", at=9)


def test_a_hang_ends_the_trial_at_once(alarms, monkeypatch):
    monkeypatch.setattr(Endless, "step", lambda self, action: time.sleep(60))
    with pytest.raises(EnvFault, match=r"^hung for more than 60 s \(worker.step_timeout_s\)$"):
        attempt("TestEndless-v0")
    assert Endless.resets == 1


@pytest.mark.parametrize("part", [False, True])
def test_a_trial_takes_legal_actions_only(part):
    assert attempt("drl_cli.envs.probes:Masked-v0", part=part) == []
