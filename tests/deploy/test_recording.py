from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from graphs import make_config
from recorded_envs import SPACES, env_config

from drl_cli.data.draft import Episode, Written
from drl_cli.deploy import recording
from drl_cli.deploy.recording import Recorder, cut, episode_ends, random_policy, whole_episodes
from drl_cli.envs.make import read_spec
from drl_cli.errors import UsageError
from drl_cli.run_folder.replay_files import has_lost_rows
from drl_cli.runs.auto import results
from drl_cli.utils.seeding import integers
from drl_cli.utils.shown import score_text


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


gymnasium.register("TestReuser-v0", "test_recording:Reuser")


def recorder(config, max_steps=100):
    spec = read_spec(config)
    return Recorder(config, spec, partial(random_policy, spec, 0), max_steps)


def test_arrays_that_the_environment_reuses_are_copied():
    (episode,) = recorder(env_config(id="TestReuser-v0")).episodes(0, 0, 1, None)
    np.testing.assert_array_equal(episode.obs[""], [[-1], [1], [2], [3], [4]])
    np.testing.assert_array_equal(episode.reward, episode.action[""])
    assert set(episode.action[""].tolist()) == {5, 6}
    assert episode.terminated.tolist() == [False, False, False, True]
    assert not episode.truncated.any()


@pytest.mark.parametrize("together", [1, 3, 16])
def test_every_episode_has_its_own_seed(together):
    made = recorder(env_config(id="TestReuser-v0"))
    made.together = together
    found = [*made.episodes(7, 2, 10, None)]
    assert [episode.seed for episode in found] == integers(7, "record", 10, 2)


@pytest.mark.parametrize("done", [1, 4, 5, 9, 10])
def test_a_recording_continues_in_the_same_rounds(done):
    made = recorder(env_config(id="TestReuser-v0"))
    rounds, true = [], made.play
    made.together, made.play = 4, lambda seeds: rounds.append(seeds) or true(seeds)
    whole = [*made.episodes(7, 2, 10, None)]
    expected = rounds[done // 4 :] if done < 10 else []
    rounds.clear()
    rest = [*made.episodes(7, 2, 10, None, Written(4 * done, done))]
    assert [episode.seed for episode in rest] == [episode.seed for episode in whole[done:]]
    assert rounds == expected
    *_, last = made.episodes(7, 2, None, 4 * done + 6, Written(4 * done, done))
    assert (last.seed, len(last.reward), last.is_whole) == (integers(7, "record", done + 2, 2)[-1], 2, False)
    assert not [*made.episodes(7, 2, None, 4 * done, Written(4 * done, done))]


def test_the_exploration_has_other_random_numbers_after_an_interruption():
    spec = read_spec(env_config(id="Pendulum-v1"))
    obs = np.zeros((1, 3), np.float32)
    actions = [random_policy(spec, 0, done)(obs, None).item() for done in (0, 16, 16, 32)]
    assert actions[1] == actions[2]
    assert len({*actions}) == 3


def test_the_policy_is_told_its_last_reward():
    made, told = recorder(env_config(id="TestReuser-v0")), []
    made.policy = lambda done: lambda obs, last: told.append(last.reward.item()) or np.zeros(1, np.int64)
    assert len([*made.episodes(0, 0, 1, None)]) == 1
    assert told == [0, 5, 5, 5]


class Lasting(Reuser):
    """The episodes have 4, 5, 2 and 5 steps."""

    def step(self, action):
        *step, _, truncated, info = super().step(action)
        return *step, self.count == self.length, truncated, info

    def reset(self, *, seed=None, options=None):
        self.length = {7: 4, 8: 5, 9: 2}.get(seed, 5)
        return super().reset()


gymnasium.register("TestLasting-v0", "test_recording:Lasting")


def test_an_episode_is_given_as_soon_as_it_and_those_before_it_have_ended():
    made = recorder(env_config(id="TestLasting-v0"))
    steps, true = [0], made.policy(0)
    made.act = lambda *args: steps.append(steps[-1] + 1) or true(*args)
    taken = [(steps[-1], episode.seed, len(episode.reward)) for episode in made.play([7, 8, 9, 10])]
    assert taken == [(4, 7, 4), (5, 8, 5), (5, 9, 2), (5, 10, 5)]


def test_fewer_long_episodes_are_played_together():
    steps = [100, 10**8, 10**9]  # observations of 4 bytes
    assert [recorder(env_config(id="TestReuser-v0"), num).together for num in steps] == [16, 2, 1]


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
        is_odd = len(episode.reward) % 2 == 1  # such an episode is truncated
        assert (episode.terminated[-1], episode.truncated[-1]) == (not is_odd, is_odd)
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
    assert (part.is_whole, all_of_it.is_whole) == (False, True)
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


@pytest.mark.parametrize("has_lost_rows", [False, True])
def test_pieces_of_episodes_in_a_replay(has_lost_rows):
    """The first episode of an environment lacks its beginning if rows were lost; the last one may lack its end."""
    rows = {
        "source": np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2]),
        "terminated": np.array([0, 1, 0, 0, 0, 0, 0, 0, 1, 1], bool),
        "truncated": np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0], bool),
    }
    is_first_whole = not has_lost_rows
    expected = [is_first_whole, True, False, False, False, is_first_whole]
    assert whole_episodes(rows, [2, 4, 5, 7, 9, 10], has_lost_rows) == expected


def test_a_table_has_lost_rows_if_a_shard_has_overwritten_some():
    full, other = ({"table.store.inserts": np.int64(n), "size": np.int64(8)} for n in (8, 9))
    assert [has_lost_rows(states) for states in ([full], [full, other])] == [False, True]


def measured(env, dataset=None, words=()):
    config = make_config(f"env={env}", "data.reference=auto")
    changed, lines = recording.with_measured_reference(config, dataset, words)
    return changed.data.reference, lines


def of_returns(*returns):
    return SimpleNamespace(facts=SimpleNamespace(whole_returns=np.array(returns)))


def test_a_random_policy_is_measured_and_the_best_recorded_result_is_the_expert():
    best, algo = max((one["return"], one["algo"]) for one in results() if one["env"] == "Pendulum-v1")
    (random, expert), (line,) = measured("Pendulum-v1")
    assert -1500 < random < -900
    assert expert == best
    start = f"data.reference=[{score_text(random)},{score_text(best)}]"
    assert line == f"{start}: 20 episodes of random actions, and the recorded result of {algo}"
    assert measured("Pendulum-v1")[0][0] == random


def test_a_changed_task_has_no_recorded_result():
    dataset = of_returns(-1600.0, -800.0, -900.0)
    (_, expert), (line,) = measured("Pendulum-v1", dataset, ["env.kwargs.g=5"])
    assert (expert, line.endswith("and the best episode of the dataset")) == (-800.0, True)


def test_without_an_expert_the_user_is_asked():
    with pytest.raises(UsageError, match=r"there is no return of an expert; say \[-1\d+\.\d,EXPERT\]"):
        measured("Pendulum-v1", None, ["env.kwargs.g=5"])
    with pytest.raises(UsageError, match=r"from the best episode of the dataset: data.reference="):
        measured("Pendulum-v1", of_returns(-1800.0), ["env.kwargs.g=5"])


def test_returns_that_are_given_stay():
    config = make_config("env=Pendulum-v1", "data.reference=[0,1]")
    assert recording.with_measured_reference(config, None, ()) == (config, [])
