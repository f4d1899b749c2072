import gymnasium
import numpy as np
import pytest
from recorded_envs import SPACES, env_config

from drl_cli.data.write import Episode
from drl_cli.deploy import recording
from drl_cli.deploy.recording import Recorder, cut, random_policy
from drl_cli.deploy.replay_recording import episode_ends
from drl_cli.envs.make import read_spec
from drl_cli.utils.seeding import integers


class Reuser(gymnasium.Env):
    """Writes every observation into the same array: the number of the step. Takes the seed as its first one."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self):
        self.obs = np.zeros(1)

    def reset(self, *, seed=None, options=None):
        self.count, self.obs[0] = 0, -1
        return self.obs, {}

    def step(self, action):
        self.count += 1
        self.obs[0] = self.count
        return self.obs, action, self.count == 4, False, {}


gymnasium.register("TestReuser-v0", "test_recorded_episodes:Reuser")


def recorder(config, max_steps=100):
    spec = read_spec(config)
    return Recorder(config, spec, random_policy(spec, 0), max_steps)


def test_arrays_that_the_environment_reuses_are_copied():
    (episode,) = recorder(env_config(id="TestReuser-v0")).episodes(0, 0, 1, None)
    np.testing.assert_array_equal(episode.obs[""], [[-1], [1], [2], [3], [4]])
    np.testing.assert_array_equal(episode.reward, episode.action[""])
    assert set(episode.action[""].tolist()) == {5, 6}
    assert episode.terminated.tolist() == [False, False, False, True]
    assert not episode.truncated.any()


@pytest.mark.parametrize("together", [1, 3, 16])
def test_every_episode_has_its_own_seed(monkeypatch, together):
    monkeypatch.setattr(recording, "MAX_TOGETHER", together)
    found = [*recorder(env_config(id="TestReuser-v0")).episodes(7, 2, 10, None)]
    assert [episode.seed for episode in found] == integers(7, "record", 10, 2)


def test_large_observations_are_played_one_by_one(monkeypatch):
    monkeypatch.setattr(recording, "ROUND_BYTES", 1000)
    rounds, true = [], Recorder.play
    monkeypatch.setattr(Recorder, "play", lambda self, seeds: rounds.append(len(seeds)) or true(self, seeds))
    made = recorder(env_config(id="TestReuser-v0"), max_steps=100)
    assert (len([*made.episodes(0, 0, 4, None)]), rounds) == (4, [2, 2])


def test_episodes_that_go_on_are_truncated():
    (episode,) = recorder(env_config(id="TestReuser-v0"), max_steps=3).episodes(0, 0, 1, None)
    assert (episode.terminated.tolist(), episode.truncated.tolist()) == ([False] * 3, [False, False, True])
    (episode,) = recorder(env_config(id="TestReuser-v0"), max_steps=4).episodes(0, 0, 1, None)
    assert (episode.terminated[-1], episode.truncated[-1]) == (True, False)


@pytest.mark.parametrize("kind", SPACES)
def test_observations_and_actions_are_in_the_units_of_the_environment(kind):
    found = [*recorder(env_config(kind)).episodes(0, 0, 4, None)]
    observations, actions = SPACES[kind]
    from drl_cli.envs.trees import tree_of

    for episode in found:
        assert len(episode.obs[next(iter(episode.obs))]) == len(episode.reward) + 1
        for t in range(len(episode.reward)):
            assert actions.contains(tree_of(actions, {path: part[t] for path, part in episode.action.items()}))
            obs = tree_of(observations, {path: part[t] for path, part in episode.obs.items()})
            assert observations.contains(obs)


def test_a_cut_episode():
    whole = Episode({"": np.arange(5)}, {"": np.arange(4)}, np.arange(4.0), np.arange(4) == 3, np.zeros(4, bool), 9)
    part, all_of_it = cut(whole, 2), cut(whole, 4)
    assert (part.obs[""].tolist(), part.action[""].tolist(), part.seed) == ([0, 1, 2], [0, 1], 9)
    assert (part.terminated.tolist(), part.truncated.tolist()) == ([False, False], [False, True])
    assert (all_of_it.terminated[-1], all_of_it.truncated[-1]) == (True, False)
    assert not whole.truncated.any()


def test_the_ends_of_episodes_in_a_replay():
    rows = {
        "source": np.array([0, 0, 0, 0, 0, 1, 1, 1]),
        "terminated": np.array([0, 1, 0, 0, 0, 0, 0, 0], bool),
        "truncated": np.array([0, 0, 0, 1, 0, 0, 0, 0], bool),
        "obs.a": np.array([0, 1, 2, 3, 4, 5, 6, 9]),
        "next_obs.a": np.array([1, 2, 3, 4, 5, 6, 7, 10]),  # the environment failed after 6
        "obs.b": np.zeros((8, 2)),
        "next_obs.b": np.zeros((8, 2)),
    }
    assert episode_ends(rows) == [2, 4, 5, 7, 8]
    rows["next_obs.b"][2, 1] = 1
    assert episode_ends(rows) == [2, 3, 4, 5, 7, 8]
