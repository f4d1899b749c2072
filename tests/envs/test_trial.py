import random
import re
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from drl_cli.envs.apart import trial_apart
from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.make import read_spec
from drl_cli.envs.trial import STEPS, try_env


class Raw(gymnasium.Env):
    """Observations `[scale * t, constant, noise]`; rewards from 0 to `reward`."""

    observation_space, action_space = Box(-1e9, 1e9, (3,), np.float32), Box(-1, 1, (1,), np.float32)

    def __init__(self, scale=1.0, reward=1.0, source=None, constant=7.0, cut=None):
        self.cut = cut
        self.scale, self.reward, self.source, self.constant, self.t = scale, reward, source, constant, 0

    def obs(self):
        draw = {"numpy": np.random.random, "python": random.random, None: self.np_random.random}[self.source]
        return np.array([self.scale * (1 + self.t % 2), self.constant, 0.5 + draw()], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {}

    def step(self, action):
        self.t += 1
        return self.obs(), self.reward * (self.t % 2), self.t >= 20, self.t == self.cut, {}


gymnasium.register("TestSizes-v0", Raw)
gymnasium.register("TestSizesLimited-v0", Raw, max_episode_steps=15)
CONSTANT = "part 1 of observations never changed in 200 steps"
NUMPY = "its random numbers come from numpy's global generator; draw from self.np_random"


def warnings(is_thorough, keys=(), **kwargs):
    config = EnvConfig("test", "TestSizes-v0", kwargs, None, 1.0, "none", False, False)
    config = config if not keys else EnvConfig(**{**vars(config), **dict(keys)})
    notes = try_env(config, read_spec(config), num=1, seconds=60.0, timeout_s=60.0, is_thorough=is_thorough)
    return [note.removeprefix("TestSizes-v0: ") for note in notes]


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, []),
        ({"scale": 1e4}, [r"observations have parts of size 2e\+04; env.normalize_obs=true brings them near 1"]),
        ({"scale": -1e4}, [r"observations have parts of size 2e\+04; env"]),
        ({"scale": 1e-4}, [r"observations have parts of size 0.0002; env.normalize_obs=true"]),
        ({"scale": 60}, []),
        ({"constant": 1e6}, []),
        ({"constant": 0.0}, []),
        ({"reward": -1e3}, [r"rewards are of size 1e\+03; env.normalize_reward=true brings them near 1"]),
        ({"reward": 1e-3}, [r"rewards are of size 0.001; env.normalize_reward=true"]),
        ({"reward": 0.0}, []),
        ({"source": "numpy"}, [NUMPY]),
        ({"source": "python"}, ["its random numbers come from Python's global generator; draw"]),
    ],
)
def test_an_unusual_environment_has_one_warning(kwargs, expected):
    found = warnings(False, **kwargs)
    assert len(found) == len(expected)
    assert all(re.match(text, line) for text, line in zip(expected, found, strict=True)), found


@pytest.mark.parametrize(
    ("key", "value"),
    [("normalize_obs", True), ("normalize_reward", True), ("reward_scale", 0.01), ("reward_clip", 1.0)],
)
def test_what_a_key_scales_is_not_named(key, value):
    (line,) = warnings(False, {key: value}, scale=1e4, reward=1e4)
    assert line.startswith("rewards" if key == "normalize_obs" else "observations")


def test_a_dry_run_also_names_what_never_changes():
    assert warnings(True) == [CONSTANT]
    nothing = "all rewards of 200 random steps were 0; if success is rare, reward=rnd rewards what is new"
    assert warnings(True, reward=0.0) == [nothing, CONSTANT]


@pytest.mark.parametrize(
    ("kwargs", "is_unusual"),
    [
        ({}, False),
        ({"scale": 5.0}, False),
        ({"scale": 10.0}, True),  # the root mean square of 10 and 20
        ({"scale": -10.0}, True),
        ({"scale": 0.03}, False),
        ({"scale": 0.02}, True),  # at most 0.04
        ({"constant": 11.0}, True),
        ({"constant": 0.001}, False),  # it never changes
    ],
)
def test_unusual_sizes(kwargs, is_unusual):
    config = EnvConfig("test", "TestSizes-v0", kwargs, None, 1.0, "none", False, False)
    assert trial_apart(config, read_spec(config, True), 60.0).is_unusual is is_unusual


class Paid(Raw):
    """The reward is `reward(t, action)` for an action in [0, 4], or for a choice."""

    def __init__(self, reward, is_choice=False):
        super().__init__()
        self.pay = reward
        self.action_space = Discrete(3) if is_choice else Box(0, 4, (2,), np.float32)

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, self.pay(self.t, action), *rest


gymnasium.register("TestPaid-v0", Paid)


@pytest.mark.parametrize(
    ("reward", "is_sparse"),
    [
        (lambda t, action: 0.0, True),
        (lambda t, action: -1.0, True),
        (lambda t, action: -0.1 * np.square((action - 2) / 2).sum(), True),
        (lambda t, action: -3.0 - np.abs((action - 2) / 2).sum(), True),
        (lambda t, action: 1.0, False),  # for staying alive
        (lambda t, action: -0.1 * np.square((action - 2) / 2).sum() + (t == 19), False),
        (lambda t, action: -0.1 * np.square((action - 2) / 2).sum() - (t == 19), False),
        (lambda t, action: -0.01 * t, False),
        (lambda t, action: -action[0], False),  # a direction is better than the other
    ],
)
def test_rewards_are_sparse_if_only_the_size_of_actions_changes_them(reward, is_sparse):
    config = EnvConfig("test", "TestPaid-v0", {"reward": reward}, None, 1.0, "none", False, False)
    assert trial_apart(config, read_spec(config, True), 60.0).is_sparse is is_sparse


@pytest.mark.parametrize(("reward", "is_sparse"), [(lambda t, _: -1.0, True), (lambda t, choice: -choice, False)])
def test_rewards_of_choices_are_sparse_if_they_are_equal(reward, is_sparse):
    kwargs = {"reward": reward, "is_choice": True}
    config = EnvConfig("test", "TestPaid-v0", kwargs, None, 1.0, "none", False, False)
    assert trial_apart(config, read_spec(config, True), 60.0).is_sparse is is_sparse


@pytest.mark.parametrize(
    ("id", "cut", "limit"),
    [
        ("TestSizes-v0", None, None),  # it ends by itself, which is no time limit
        ("TestSizes-v0", 7, 7),
        ("TestSizes-v0", 20, None),  # both at once: the episode ended by itself
        ("TestSizesLimited-v0", None, 15),
        ("TestSizesLimited-v0", 7, 15),
    ],
)
def test_the_time_limit_is_declared_or_seen(id, cut, limit):
    config = EnvConfig("test", id, {"cut": cut}, None, 1.0, "none", False, False)
    assert trial_apart(config, read_spec(config, True), 60.0).limit == limit


class Endless(gymnasium.Env):
    """Episodes never end. A step takes `seconds`."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
    resets = steps = 0

    def __init__(self, seconds=0):
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        Endless.resets += 1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Endless.steps += 1
        time.sleep(self.seconds)
        return np.zeros(2, np.float32), 1.0, False, False, {}


class DmControlTask:
    """The attributes of a task of dm_control that shimmy wraps."""

    def __init__(self, limits):
        vars(self).update(limits)


class Shimmy(Endless):
    """An environment of shimmy. It has no TimeLimit, because the task ends its episodes."""

    def __init__(self, limits):
        super().__init__()
        self._env = DmControlTask(limits)


gymnasium.register("TestEndless-v0", Endless)
gymnasium.register("TestShimmy-v0", Shimmy)
gymnasium.register("TestLimited-v0", Endless, max_episode_steps=500)


def config(id, **kwargs):
    return EnvConfig("test", id, kwargs, None, 1.0, "none", False, False)


def attempt(id, num=1, seconds=60.0, step=0, **kwargs):
    made = config(id, **kwargs, **({"seconds": step} if step else {}))
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


def test_a_hang_ends_the_trial_at_once(alarms):
    with pytest.raises(EnvFault, match=r"^hung for more than 60 s \(worker.step_timeout_s\)$"):
        attempt("TestEndless-v0", step=60)
    assert Endless.resets == 1


@pytest.mark.parametrize("part", [False, True])
def test_a_trial_takes_legal_actions_only(part):
    assert attempt("drl_cli.envs.probes:Masked-v0", part=part) == []
