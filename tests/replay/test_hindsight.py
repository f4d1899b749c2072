"""Hindsight: a relabelled row is a transition of the same episode with a goal that the episode reached later."""

import copy
import dataclasses

import numpy as np
import pytest

from drl_cli.replay.base import Load
from drl_cli.replay.config import PrioritizedConfig, UniformConfig
from drl_cli.replay.windows import goal_problems
from drl_cli.types import ActionSpec, Column, EnvSpec

GAMMA, NUM_ENVS, CAPACITY = 0.9, 3, 60
NAMES = ("achieved_goal", "desired_goal")
GOALS = {f"{name}.{part}": Column((2,), "float32") for name in ("obs", "next_obs") for part in NAMES}
FLAGS = {name: Column((), "bool") for name in ("terminated", "truncated")}
NUMBERS = {"reward": Column((), "float32"), "discount": Column((), "float32"), "action": Column((), "int64")}
SCHEMA = {**GOALS, **NUMBERS, **FLAGS, "source": Column((), "int32")}
CONFIG = UniformConfig("uniform", CAPACITY, 1, "oldest", "none", rows="hindsight")
OPTIONS = ("max", 1.0, 0.4, 1e-6, 0.0)
PRIORITIZED = PrioritizedConfig("prioritized", CAPACITY, 1, "oldest", "none", *OPTIONS, rows="hindsight")


def outcome(achieved, desired):
    """The reward of the goal (episode, time) differs for each step and each goal, and is 0 if a step reaches it."""
    is_there = (achieved == desired).all(-1)
    return np.where(is_there, 0.0, -1 - achieved[..., 1] - 0.01 * desired[..., 1]).astype(np.float32), is_there


def endless(achieved, desired):
    """The goal does not end the episode: the environment has no `compute_terminated`."""
    return outcome(achieved, desired)[0], None


def never(achieved, desired):
    """Goals never end the episode, but other things do."""
    reward, is_there = outcome(achieved, desired)
    return reward, is_there & False


class Episodes:
    """Makes blocks of steps. The state after t steps of an episode is the achieved goal (episode, t).

    The desired goal is (-1, 3) in half of the episodes, which no state equals. The other episodes want (episode, 3).
    """

    def __init__(self, seed=0):
        self.rng, self.made, self.ends = np.random.default_rng(seed), 0, {}
        self.running = [self.begin() for _ in range(NUM_ENVS)]

    def begin(self):
        self.made += 1
        return [self.made, 0]

    def block(self, num_steps):
        rows = []
        for _ in range(num_steps):
            for source, (episode, time) in enumerate(self.running):
                goal = [episode if episode % 2 else -1, 3]
                after = [episode, time + 1]
                reward, is_there = (part.item() for part in outcome(np.array(after), np.array(goal)))
                terminated, truncated = is_there or self.rng.random() < 0.1, self.rng.random() < 0.1
                self.ends[episode, time] = terminated and not is_there
                goals = ([episode, time], goal, after, goal)
                discount = 0.0 if terminated else GAMMA
                rows.append((*goals, reward, discount, time, terminated, truncated, source))
                self.running[source] = self.begin() if terminated or truncated else after
        columns = zip(*rows, strict=True)
        return {n: np.array(c).astype(SCHEMA[n].dtype) for n, c in zip(SCHEMA, columns, strict=True)}, np.zeros(
            len(rows)
        )


def make(config=CONFIG, n_step=1, seed=0, reward=outcome):
    table = config.make_table(SCHEMA, np.random.default_rng(seed), 100, None, GAMMA, n_step)
    table.outcome = reward
    return table


def check_rows(table, episodes, n_step=1, ends=True, num=200):
    """Draw rows, compare them with the episodes, and return (time, time of the new goal) of the relabelled rows."""
    contents = table.contents()
    stored = {tuple(goal) for goal in contents["next_obs.achieved_goal"].tolist()}
    last = {tuple(map(int, g)) for g in contents["next_obs.achieved_goal"][contents["truncated"]].tolist()}
    own = dict(zip(map(tuple, contents["obs.achieved_goal"].tolist()), contents["terminated"].tolist(), strict=True))
    drawn = {name: column.reshape(-1, *column.shape[2:]) for name, column in table.sample(2, num, 0).columns.items()}
    assert drawn.keys() - {"weight"} == SCHEMA.keys()
    np.testing.assert_array_equal(drawn["obs.desired_goal"], drawn["next_obs.desired_goal"])
    new = []
    for i in range(2 * num):
        (episode, time), goal = map(int, drawn["obs.achieved_goal"][i]), drawn["obs.desired_goal"][i].tolist()
        if goal != [episode if episode % 2 else -1, 3]:
            assert (goal[0], goal[1] > time, tuple(goal) in stored) == (episode, True, True)
            new.append((time, int(goal[1])))
        total, after = 0.0, time
        while True:
            after += 1
            reward, is_there = (part.item() for part in outcome(np.array([episode, after]), np.array(goal)))
            total += GAMMA ** (after - 1 - time) * reward
            terminated = own[episode, after - 1] if not ends else is_there or episodes.ends[episode, after - 1]
            is_newest = (episode, after + 1) not in stored
            if terminated or (episode, after) in last or after - time == n_step or is_newest:
                break
        assert drawn["next_obs.achieved_goal"][i].tolist() == [episode, after]
        assert (drawn["reward"][i], drawn["terminated"][i]) == (pytest.approx(total, rel=1e-5), terminated)
        assert drawn["truncated"][i] == ((episode, after) in last)
        assert drawn["discount"][i] == pytest.approx(0.0 if terminated else GAMMA ** (after - time))
        assert drawn["action"][i] == time
    return new


@pytest.mark.parametrize("config", [CONFIG, PRIORITIZED], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("reward", [outcome, endless, never])
def test_rows_are_transitions_of_one_episode_with_a_goal_that_it_reached_later(config, n_step, reward):
    table, episodes = make(config, n_step, reward=reward), Episodes()
    new = []
    for _ in range(8):
        block = episodes.block(int(episodes.rng.integers(1, 8)))
        if episodes.rng.random() < 0.8 or not len(table):  # the other blocks are lost on the way
            table.insert(*block)
            new += check_rows(table, episodes, n_step, reward is outcome, 50)
    assert any(goal > time + 1 for time, goal in new)


def test_four_of_five_rows_get_a_new_goal_and_all_later_steps_are_equally_probable():
    table, block = make(), Episodes().block(4)[0]
    goals = np.array([[e, t] for t in range(5) for e in range(3)], np.float32)
    block |= {"obs.achieved_goal": goals[:12], "next_obs.achieved_goal": goals[3:]}
    block |= {name: np.full((12, 2), -1, np.float32) for name in SCHEMA if name.endswith(NAMES[1])}
    block |= {name: np.zeros(12, bool) for name in FLAGS} | {"source": np.arange(12, dtype=np.int32) % 3}
    table.insert(block, np.zeros(12))
    drawn = table.sample(1, 20_000, 0).columns
    first, goal = drawn["obs.achieved_goal"][0, :, 1] == 0, drawn["obs.desired_goal"][0]
    assert (goal[:, 0] >= 0).mean() == pytest.approx(0.8, abs=0.02)
    counts = np.bincount((goal[first][:, 1] + 1).astype(int), minlength=6) / first.sum()
    np.testing.assert_allclose(counts, [0.2, 0, 0.2, 0.2, 0.2, 0.2], atol=0.03)


def test_a_copy_from_the_state_and_the_rows_draws_the_same_rows():
    table, episodes, again = make(n_step=2), Episodes(), make(n_step=2, seed=9)
    for _ in range(7):
        table.insert(*episodes.block(4))
    again.load_state(copy.deepcopy(table.state()))
    again.store.fill([{name: column.copy() for name, column in table.store.columns.items()}])
    block = episodes.block(5)
    for each in (table, again):
        each.insert(*block)
    drawn, same = (each.sample(2, 300, 0).columns for each in (table, again))
    for name in drawn:
        np.testing.assert_array_equal(drawn[name], same[name])


def test_hindsight_needs_an_index_more_memory_than_transitions():
    plain = dataclasses.replace(CONFIG, rows="transitions")
    assert CONFIG.table_bytes(SCHEMA) == make().nbytes
    assert make().nbytes <= plain.make_table(SCHEMA, np.random.default_rng(0), 100).nbytes
    assert (CONFIG.row_steps(3), CONFIG.make_builder(3, GAMMA)[1], CONFIG.table) == (1, 0, "uniform")


def test_priorities_belong_to_rows():
    table = make(PRIORITIZED)
    table.insert(*Episodes().block(10))
    drawn = table.sample(1, 20, 0)
    assert drawn.columns["weight"].shape == (1, 20)
    table.update_priorities(drawn.row_ids, np.full((1, 20), 7.0))
    assert np.isclose(table.sampler.tree.values, 7.0, atol=1e-3).sum() == len(np.unique(drawn.row_ids))


def test_rows_of_a_full_table_must_be_in_order():
    load = Load(1000, 8, 8, 8, is_async=False, versions_per_batch=1)
    (line,) = dataclasses.replace(CONFIG, remover="random").problems(load)
    assert "replay.rows=hindsight needs rows in order; say replay.remover=oldest" in line


@pytest.mark.parametrize(
    ("obs", "problem"),
    [
        (Column((3,), "float32"), "needs the parts achieved_goal and desired_goal in the observations; E has no parts"),
        (dict.fromkeys(("achieved_goal", "observation"), Column((3,), "float32")), "E has achieved_goal, observation"),
        (
            dict(zip(NAMES, (Column((3,), "float32"), Column((2,), "float32")), strict=True)),
            "different shapes or types",
        ),
        (dict.fromkeys(NAMES, Column((8, 8, 3), "uint8")), "must be vectors of numbers or booleans"),
        (dict.fromkeys(NAMES, Column((), "int32", (4,))), "must be vectors of numbers or booleans"),
    ],
)
def test_observations_without_goals_are_refused(obs, problem):
    (line,) = goal_problems(EnvSpec("E", obs, ActionSpec("discrete", 2, "Discrete(2)")))
    assert problem in line


def test_a_goal_environment_has_no_problems():
    assert not [*goal_problems(EnvSpec("E", dict.fromkeys(NAMES, Column((3,), "float32")), ActionSpec("box", 2, "")))]
