import importlib.util
from decimal import Decimal

import fake_envpool
import gymnasium
import numpy as np
import pytest
from fake_envpool import FakePool
from gymnasium.spaces import Box
from telling import Telling

from drl_cli.envs.config import EnvConfig, EnvError, MissingExtra
from drl_cli.envs.make import Env, exists, read_spec, registered
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.envs.stepping.envpool_batch import EnvPoolBatch
from drl_cli.envs.stepping.step import MOST, numbers
from drl_cli.types import ActionSpec, Episode, leaves


class Recording(gymnasium.Env):
    """An environment with given spaces that keeps its actions. Episodes are truncated after 3 steps."""

    def __init__(self, action_space=None, observation_space=None):
        self.action_space = action_space or Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = observation_space or Box(-100.0, 100.0, (2,), np.float32)
        self.actions, self.count, self.resets = [], 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.resets = 0, self.resets + 1
        return np.array([-self.resets, self.np_random.random()], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(action)
        self.count += 1
        return (
            np.array([self.count, self.np_random.random()], np.float32),
            10.0 * self.count,
            False,
            self.count == 3,
            {},
        )


class SameArray(gymnasium.Env):
    """Returns the same array at every step and reset, changed in place."""

    def __init__(self):
        self.observation_space, self.action_space = Box(-1, 100, (1,), np.float32), Box(-1, 1, (1,), np.float32)
        self.obs = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.obs[0] = 0
        return self.obs, {}

    def step(self, action):
        self.obs += 1
        return self.obs, 1.0, bool(self.obs[0] == 3), False, {}


gymnasium.register("TestRecording-v0", Recording)
gymnasium.register("TestSameArray-v0", SameArray)


def config(id, **kwargs):
    return EnvConfig("test", id, kwargs, None, 1.0, "none", False, False)


def batch(id, seeds=(0,), **kwargs):
    return EnvBatch(config(id, **kwargs), read_spec(config(id, **kwargs)), seeds)


def make_env(**kwargs):
    made = config("TestRecording-v0", **kwargs)
    return Env(made, read_spec(made))


@pytest.mark.parametrize(
    ("low", "high", "action", "expected"),
    [
        ([-1.0], [1.0], [0.3], [0.3]),
        ([-2.0], [2.0], [0.5], [1.0]),
        ([-2.0], [4.0], [0.5], [2.5]),
        ([0.0, -10.0], [1.0, 30.0], [-1.0, 1.0], [0.0, 30.0]),
        ([0.0, -10.0], [1.0, 30.0], [0.0, 0.0], [0.5, 10.0]),
        ([-2.0], [4.0], [7.0], [4.0]),  # clipped, never outside the space
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_rescaled(low, high, action, expected, dtype):
    env = make_env(action_space=Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype))
    env.reset(0)
    env.raw.step(env.to_env(np.array([action], np.float32))[0])
    (given,) = env.raw.unwrapped.actions
    assert given.dtype == dtype
    np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-6)


def test_actions_with_inexact_bounds_stay_inside_and_keep_their_shape():
    space = Box(np.full((2, 3), -0.1, np.float32), np.full((2, 3), 0.7, np.float32))
    env = make_env(action_space=space)
    assert read_spec(config("TestRecording-v0", action_space=space)).action == ActionSpec("box", 6, "Box(2, 3)")
    env.reset(0)
    for action in (np.ones(6), -np.ones(6), np.linspace(-1, 1, 6)):
        env.raw.step(env.to_env(action[None].astype(np.float32))[0])
    assert [given.shape for given in env.raw.unwrapped.actions] == [(2, 3)] * 3


def test_final_observation_is_kept_apart_from_the_reset_observation():
    envs = batch("TestRecording-v0", seeds=(0, 1))
    steps = [envs.step(np.zeros((2, 1), np.float32)) for _ in range(4)]
    assert [step.next_obs[:, 0].tolist() for step in steps] == [[1, 1], [2, 2], [3, 3], [1, 1]]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert not any(step.terminated.any() for step in steps)
    again = batch("TestRecording-v0")
    assert again.obs[0, 0] == -1
    for _ in range(3):
        again.step(np.zeros((1, 1), np.float32))
    assert again.obs[0, 0] == -2  # the next action is for the new episode


def test_episode_statistics_are_undiscounted_and_taken_once():
    envs = batch("TestRecording-v0", seeds=(0, 1))
    for _ in range(7):
        envs.step(np.zeros((2, 1), np.float32))
    assert envs.take_news()[0] == tuple(Episode(env, 60.0, 3) for _ in range(2) for env in range(2))
    assert envs.take_news()[0] == ()
    envs.step(np.zeros((2, 1), np.float32))
    envs.step(np.zeros((2, 1), np.float32))
    assert envs.take_news()[0] == (Episode(0, 60.0, 3), Episode(1, 60.0, 3))


def test_seeds_are_distinct_reproducible_and_not_reused_at_reset():
    def noise(seeds):
        envs = batch("TestRecording-v0", seeds=seeds)
        return np.stack([envs.step(np.zeros((len(seeds), 1), np.float32)).next_obs[:, 1] for _ in range(9)])

    first = noise((1, 2))
    np.testing.assert_array_equal(first, noise((1, 2)))
    assert len(np.unique(first)) == first.size


def test_steps_own_their_arrays_when_the_environment_reuses_one():
    envs = batch("TestSameArray-v0", seeds=(0, 1))
    before, steps = [], []
    for _ in range(4):
        before.append(envs.obs.copy())
        steps.append(envs.step(np.zeros((2, 1), np.float32)))
    assert [obs[0, 0] for obs in before] == [0, 1, 2, 0]
    assert [step.next_obs[0, 0] for step in steps] == [1, 2, 3, 1]


@pytest.mark.parametrize(
    "id", ["NoSuchEnv-v0", "no_such_module:Env-v0", "drl_cli.envs.probes:NoSuchEnv-v0", "CartPole-v99"]
)
def test_unknown_environments(id):
    with pytest.raises(EnvError, match=r"^env: "):
        read_spec(config(id))


def test_exists():
    assert exists("CartPole-v1")
    assert exists("drl_cli.envs.probes:Counter-v0")
    assert not exists("NoSuchEnv-v0")
    assert not exists("no_such_module:Env-v0")
    assert not exists("no_such.module:Env-v0")
    assert not exists(":Env-v0")
    assert "CartPole-v1" in registered()


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is not None, reason="mujoco is installed")
def test_a_missing_extra_says_what_to_install():
    with pytest.raises(MissingExtra, match=r"Ant-v5 needs MuJoCo:  pip install 'drl-cli\[mujoco\]'"):
        read_spec(config("Ant-v5"))


def test_a_mujoco_task_is_truncated_after_1000_steps(capfd):
    pytest.importorskip("mujoco", reason="needs drl-cli[mujoco]")
    made = config("HalfCheetah-v5")
    spec = read_spec(made)
    assert (spec.obs.shape, spec.obs.dtype, spec.is_limited) == ((17,), "float32", True)  # Gymnasium's are float64
    envs = EnvBatch(made, spec, (0,))
    ends = [(step.terminated[0], step.truncated[0]) for step in (envs.step(np.zeros((1, 6))) for _ in range(1001))]
    assert ends == [(False, False)] * 999 + [(False, True), (False, False)]
    read_spec(config("HalfCheetah"))  # Gymnasium also makes an id without its version
    assert capfd.readouterr().err == ""  # MuJoCo warns about the model of HalfCheetah


def test_a_task_of_dm_control_is_made_by_its_name(capfd):
    pytest.importorskip("shimmy", reason="needs drl-cli[dmc]")
    pytest.importorskip("dm_control", reason="needs drl-cli[dmc]")
    made = config("dm_control/cheetah-run-v0")
    spec = read_spec(made)
    assert {name: part.shape for name, part in leaves(spec.obs).items()} == {"position": (8,), "velocity": (9,)}
    assert spec.is_limited
    assert exists(made.id)
    envs = EnvBatch(made, spec, (0,))
    ends = [(step.terminated[0], step.truncated[0]) for step in (envs.step(np.zeros((1, 6))) for _ in range(1000))]
    assert ends == [(False, False)] * 999 + [(False, True)]
    assert "settotalmass" not in capfd.readouterr().err  # MuJoCo warns about the model of the cheetah


def test_time_limit():
    made = EnvConfig("test", "drl_cli.envs.probes:Forever-v0", {}, 4, 1.0, "none", False, False)
    envs = EnvBatch(made, read_spec(made), (0,))
    ends = [(step.terminated[0], step.truncated[0]) for step in (envs.step(np.zeros((1, 1))) for _ in range(8))]
    assert ends == [(False, time == 3) for time in range(4)] * 2


def named(id, backend="gymnasium", **kwargs):
    return EnvConfig(id, id, kwargs, None, 1.0, "auto", False, False, backend=backend)


def test_numbers_are_finite_scalars_of_any_kind():
    info = {"a": True, "b": 2, "c": 2.5, "d": np.bool_(False), "e": np.int64(4), "f": np.float32(0.5), "g": np.array(7)}
    expected = {"a": 1.0, "b": 2.0, "c": 2.5, "d": 0.0, "e": 4.0, "f": 0.5, "g": 7.0}
    found = numbers(info)
    assert found == expected
    assert all(type(value) is float for value in found.values())


def test_other_values_are_skipped():
    info = {
        **{
            "nan": np.nan,
            "inf": -np.inf,
            "huge": 10**400,
            "none": None,
            "text": "x",
            "complex": 1j,
            "money": Decimal(1),
        },
        **{"array": np.ones(1), "list": [1], "nested": {"x": 1}, "picture": np.zeros((2, 2))},
        **{"episode": {"r": 1.0, "l": 2, "t": 0.1}, "_episode": True, "final_info": {"x": 1}, "final_obs": np.zeros(2)},
        **{"TimeLimit.truncated": True, "elapsed_step": 3, "env_id": 1, "two\nlines": 1, 5: 5},
    }
    assert (numbers(info), numbers(None)) == ({}, {})
    assert list(numbers({f"n{i}": i for i in range(10 * MOST)})) == [f"n{i}" for i in range(MOST)]


def test_episode_statistics_of_gymnasium_are_skipped():
    env = gymnasium.wrappers.RecordEpisodeStatistics(Telling())
    env.reset()
    infos = [env.step(env.action_space.sample())[-1] for _ in range(4)]
    assert "episode" in infos[-1]
    assert set(numbers(infos[-1])) == {"success", "cost", "level", "return_mean", "mean"}


def test_an_episode_has_the_info_of_its_last_step():
    envs = EnvBatch(named("Telling-v0", level=3), read_spec(named("Telling-v0")), [2, 5])
    for _ in range(4):
        envs.step(np.zeros((2, 1), np.float32))
    message = {"cost": 4.0, "level": 3.0, "return_mean": 9.0, "mean": 7.0}
    assert envs.take_news()[0] == (
        Episode(0, 4.0, 4, {"success": 1.0, **message}),
        Episode(1, 4.0, 4, {"success": 0.0, **message}),
    )
    for _ in range(4):
        envs.step(np.zeros((2, 1), np.float32))
    assert [episode.info["lap_time"] for episode in envs.take_news()[0]] == [2.5, 2.5]


def test_an_episode_has_the_info_of_a_wrapped_environment():
    gymnasium.register("Stacked-v0", lambda: gymnasium.wrappers.FrameStackObservation(Telling(level=6), 3))
    envs = EnvBatch(named("Stacked-v0"), read_spec(named("Stacked-v0")), [2])
    for _ in range(4):
        envs.step(np.zeros((1, 1), np.float32))
    (episode,) = envs.take_news()[0]
    assert (episode.info["level"], episode.info["cost"]) == (6.0, 4.0)


@pytest.fixture
def pool(monkeypatch):
    """Make the fake EnvPool return a score, a flag, a mapping and images in its info."""
    fake_envpool.install(monkeypatch)
    step = FakePool.step

    def telling(self, actions, env_id=None):
        *rest, info = step(self, actions, env_id)
        size = len(actions)
        message = {"score": 10 * np.arange(size), "players": {"env_id": np.arange(size)}, "camera": np.zeros((size, 2))}
        return *rest, info | {"done": np.array([self.count[i] > 2 for i in range(size)])} | message

    monkeypatch.setattr(FakePool, "step", telling)


@pytest.mark.usefixtures("pool")
def test_envpool_infos_are_split_by_environment():
    config = named("FakeCounter-v0", "envpool")
    envs = EnvPoolBatch(config, read_spec(config), [1, 2, 3])
    for _ in range(3):
        envs.step(np.zeros((3, 1), np.float32))
    assert envs.take_news()[0] == tuple(Episode(i, 6.0, 3, {"score": 10.0 * i, "done": 1.0}) for i in range(3))
