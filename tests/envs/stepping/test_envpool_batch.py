import fake_envpool
import numpy as np
import pytest

from drl_cli.envs.config import EnvConfig, EnvFault
from drl_cli.envs.make import read_spec
from drl_cli.envs.stepping.envpool_batch import EnvPoolBatch
from drl_cli.types import Episode

ZEROS = np.zeros((3, 1), np.float32)


@pytest.fixture
def batch(monkeypatch):
    fake_envpool.install(monkeypatch)

    def make(seeds=(7, 8, 9), id="FakePlain-v0", max_episode_steps=None, max_rebuilds=10, **kwargs):
        config = EnvConfig("test", id, kwargs, max_episode_steps, 1.0, "none", False, False, "envpool")
        return EnvPoolBatch(config, read_spec(config), seeds, max_rebuilds)

    return make


def play(envs, num_steps):
    return [(envs.obs.copy(), envs.step(ZEROS)) for _ in range(num_steps)]


def test_every_row_is_a_step_of_an_episode(batch):
    envs = batch()
    rows = play(envs, 60)
    assert envs.pool.reset_rows == 0
    for i, seed in enumerate((7, 8, 9)):
        expected, episode = [], 0
        while len(expected) < 60:
            length = 3 + episode % 5
            expected += [([seed, episode, k], [seed, episode, k + 1], k + 1.0, k + 1 == length) for k in range(length)]
            episode += 1
        taken = [
            (obs[i].tolist(), step.next_obs[i].tolist(), float(step.reward[i]), bool(step.terminated[i]))
            for obs, step in rows
        ]
        assert taken == expected[:60]
    assert all(step.valid.all() and not step.truncated.any() for _, step in rows)


def test_begun_and_episodes(batch):
    envs = batch()
    begun = [(envs.step(ZEROS), envs.begun)[1] for _ in range(8)]
    assert begun == [[], [], [0, 1, 2], [], [], [], [0, 1, 2], []]
    expected = [Episode(i, ret, length) for ret, length in ((6.0, 3), (10.0, 4)) for i in range(3)]
    assert envs.take_news()[0] == tuple(expected)
    assert envs.take_news()[0] == ()


def test_max_episode_steps_with_envpool(batch):
    envs = batch(max_episode_steps=4)
    steps = [step for _, step in play(envs, 15)]
    ends = [
        (t, bool(s.terminated[0]), bool(s.truncated[0]))
        for t, s in enumerate(steps)
        if s.terminated[0] | s.truncated[0]
    ]
    assert ends == [(2, True, False), (6, True, True), (10, False, True), (14, False, True)]
    assert envs.pool.config.max_episode_steps == 5  # EnvPool would report step 6 as truncated only


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("nan_obs", "observation[0] is nan"), ("inf_reward", "reward is inf"), ("nan_reset", "observation[0] is nan")],
)
def test_values_that_are_not_finite_begin_a_new_episode(batch, fault, cause):
    envs, expected = batch(fault=fault), play(batch(), 12)
    rows = play(envs, 12)
    for (obs, step), (expected_obs, expected_step) in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(obs[[0, 2]], expected_obs[[0, 2]])
        for name, column in vars(step).items():
            np.testing.assert_array_equal(column[[0, 2]], vars(expected_step)[name][[0, 2]])
        assert np.isfinite(obs).all()
        assert np.isfinite(step.next_obs).all()
        assert np.isfinite(step.reward).all()
    assert [bool(step.valid[1]) for _, step in rows] == [fault == "nan_reset" or t != 3 for t in range(12)]
    first = 4 if fault != "nan_reset" else 7  # of the new episode, after one with a single observation
    assert rows[first][0][1].tolist() == [8, 2 if fault != "nan_reset" else 3, 0]
    if fault != "nan_reset":
        failed = rows[3][1]
        assert (failed.reward[1], failed.terminated[1], failed.truncated[1]) == (0, False, False)
        np.testing.assert_array_equal(failed.next_obs[1], rows[3][0][1])
    assert envs.take_news()[1] == (f"env 1: {cause}; new episode 1/10 (worker.max_restarts)",)
    assert (envs.take_news()[1], envs.pool.reset_rows) == ((), 0)


def test_max_rebuilds_limits_new_episodes(batch):
    envs = batch(fault="inf_reward", max_rebuilds=0)
    with pytest.raises(EnvFault, match=r"env 1: reward is inf; no rebuild is left \(worker.max_restarts=0\)"):
        play(envs, 4)


def test_a_pool_that_raises_is_a_fault(batch):
    envs = batch(fault="raise")
    with pytest.raises(EnvFault, match="EnvPool's step raised RuntimeError: the simulator is gone"):
        play(envs, 4)


def test_a_resume_begins_episodes_with_new_seeds(batch):
    envs = batch()
    play(envs, 5)
    seen = {7, 8, 9}
    for _ in range(3):
        state, envs = envs.state(), batch()
        assert envs.load_state(state) == ["envs 0 to 2: EnvPool can't continue episodes; they begin others"]
        step = envs.step(ZEROS)
        assert not (step.valid | step.terminated | step.truncated).any()
        assert envs.begun == [0, 1, 2]
        seeds = envs.obs[:, 0].astype(int).tolist()
        assert not seen & set(seeds)
        seen |= set(seeds)
        assert envs.obs[:, 1:].tolist() == [[0, 0]] * 3
        assert [step.valid.all() for _, step in play(envs, 3)] == [True] * 3
        assert envs.take_news()[0] == tuple(Episode(i, 6.0, 3) for i in range(3))
    with pytest.raises(ValueError, match="the saved worker has 3 environments, this one has 1"):
        batch((7,)).load_state(envs.state())


def test_a_resume_keeps_the_count_of_rebuilds(batch):
    envs = batch(fault="inf_reward", max_rebuilds=1)
    play(envs, 4)
    state, envs = envs.state(), batch(fault="nan_obs", max_rebuilds=1)
    envs.load_state(state)
    with pytest.raises(EnvFault, match=r"is nan; no rebuild is left .*; the first fault was in env 1: reward is inf"):
        play(envs, 6)


def test_an_action_that_is_not_finite_is_named(batch, monkeypatch):
    envs = batch(fault="nan_obs", fault_at=1)
    monkeypatch.setattr(envs, "to_env", lambda actions: np.zeros_like(actions))
    envs.step(np.array([[0], [np.nan], [0]], np.float32))
    assert envs.take_news()[1][0].startswith("env 1: the policy's action is not finite")


def test_equal_seeds_give_equal_rows(batch):
    first, same, other = (
        np.stack([obs for obs, _ in play(batch(seeds), 20)]) for seeds in ((1, 2, 3), (1, 2, 3), (4, 5, 6))
    )
    np.testing.assert_array_equal(first, same)
    assert (first[..., 0] != other[..., 0]).all()


@pytest.mark.parametrize(("id", "given", "limit"), [("Counter", None, 6), ("Counter", 50, 50), ("Plain", None, 1000)])
def test_time_limit_is_given_or_gymnasiums_or_envpools(batch, id, given, limit):
    envs = batch(id=f"Fake{id}-v0", max_episode_steps=given)
    assert envs.task.max_episode_steps == limit
    envs.close()
    assert envs.pool.is_closed
