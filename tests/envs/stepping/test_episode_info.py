from decimal import Decimal

import fake_envpool
import gymnasium
import numpy as np
import pytest
from fake_envpool import FakePool
from telling import Telling

from drl_cli.envs.config import EnvConfig
from drl_cli.envs.envpool_tasks import make_alone
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.batch import EnvBatch
from drl_cli.envs.stepping.envpool_batch import EnvPoolBatch
from drl_cli.envs.stepping.episode_info import MOST, numbers
from drl_cli.types import Episode


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
    assert numbers(info) == {}
    assert numbers(None) == {}
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
    assert envs.take_episodes() == (
        Episode(0, 4.0, 4, {"success": 1.0, **message}),
        Episode(1, 4.0, 4, {"success": 0.0, **message}),
    )
    for _ in range(4):
        envs.step(np.zeros((2, 1), np.float32))
    assert [episode.info["lap_time"] for episode in envs.take_episodes()] == [2.5, 2.5]


def test_an_episode_has_the_info_of_a_wrapped_environment():
    gymnasium.register("Stacked-v0", lambda: gymnasium.wrappers.FrameStackObservation(Telling(level=6), 3))
    envs = EnvBatch(named("Stacked-v0"), read_spec(named("Stacked-v0")), [2])
    for _ in range(4):
        envs.step(np.zeros((1, 1), np.float32))
    (episode,) = envs.take_episodes()
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
    assert envs.take_episodes() == tuple(Episode(i, 6.0, 3, {"score": 10.0 * i, "done": 1.0}) for i in range(3))


@pytest.mark.usefixtures("pool")
def test_info_of_an_environment_that_only_envpool_has():
    env = make_alone(named("FakeOnly-v0", "envpool"))
    env.reset(seed=1)
    infos = [env.step(np.zeros(1, np.float32))[-1] for _ in range(3)]
    assert [numbers(info) for info in infos] == [{"score": 0.0, "done": float(done)} for done in (False, False, True)]
