from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.replay.builders import EpisodeBuilder, NStepBuilder, RolloutBuilder, SequenceBuilder
from drl_cli.types import num_rows

RUNNING, TERMINATED, TRUNCATED, BOTH = range(4)


def make_step(time, ends, rewards, valid=True):
    """Return a step of all environments whose values encode environment and time."""
    ends, envs = np.asarray(ends), np.arange(len(ends))
    who = (100_000 * envs + time).astype(np.float32)
    return {
        "obs": who[:, None],
        "action": -who[:, None],
        "reward": np.asarray(rewards, np.float32),
        "next_obs": who[:, None] + 0.5,
        "terminated": (ends == TERMINATED) | (ends == BOTH),
        "truncated": (ends == TRUNCATED) | (ends == BOTH),
        "log_prob": who * 2,
        "state": np.stack([who, who + 0.25], 1),
        "valid": np.ones(len(ends), np.bool_) & valid,
    }


def reference(steps, env, n, gamma, scale):
    """Return the complete rows of one environment in order, and the number of open rows, with a simple queue.

    The queue is emptied at an episode's end and before a step that is not valid, which is in no row.
    """
    queue, rows = deque(), []
    for step in steps:
        if not step["valid"][env]:
            while queue:
                rewards = [gamma**j * scale * float(s["reward"][env]) for j, s in enumerate(queue)]
                tail = (queue[-1]["next_obs"][env, 0], gamma ** len(queue), False, True)
                rows.append((queue.popleft()["obs"][env, 0], sum(rewards), *tail))
            continue
        queue.append(step)
        ended = step["terminated"][env] or step["truncated"][env]
        while queue and (len(queue) == n or ended):
            reward = sum(gamma**j * scale * float(s["reward"][env]) for j, s in enumerate(queue))
            discount = 0.0 if step["terminated"][env] else gamma ** len(queue)
            tail = (step["next_obs"][env, 0], discount, step["terminated"][env], step["truncated"][env])
            head = queue.popleft()
            rows.append((head["obs"][env, 0], reward, *tail))
            if not ended:
                break
    return rows, len(queue)


def as_tuples(rows):
    names = ("obs", "reward", "next_obs", "discount", "terminated", "truncated")
    return list(zip(*(rows[name].reshape(num_rows(rows)).tolist() for name in names), strict=True))


# Rewards 1 2 3 4 | 5 6 ; the first episode (4 steps) terminates, the second (2 steps) is truncated; gamma 0.5.
# Columns: obs, reward, next_obs, discount, terminated, truncated.


@settings(deadline=None, max_examples=80)
@given(
    n=st.integers(1, 7),
    num_envs=st.integers(1, 4),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    scale=st.sampled_from([1.0, 0.05]),
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    p_end=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    p_fail=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_reference(n, num_envs, gamma, scale, blocks, p_end, p_fail, seed):
    rng = np.random.default_rng(seed)
    builder, steps = NStepBuilder(n, gamma, scale), []
    collected = [[] for _ in range(num_envs)]
    for block in blocks:
        for _ in range(block):
            valid = rng.random(num_envs) >= p_fail
            ends = np.where(valid & (rng.random(num_envs) < p_end), rng.integers(1, 4, num_envs), RUNNING)
            steps.append(make_step(len(steps), ends, rng.integers(-9, 10, num_envs), valid))
            builder.append(steps[-1])
        rows = builder.take()
        for row in as_tuples(rows):
            collected[int(row[0]) // 100_000].append(row)
        np.testing.assert_array_equal(rows["action"], -rows["obs"])
        np.testing.assert_array_equal(rows["log_prob"], 2 * rows["obs"][:, 0])
        np.testing.assert_array_equal(rows["state"], rows["obs"] + np.array([0.0, 0.25], np.float32))
        left = 0
        for env, got in enumerate(collected):
            expected, num_open = reference(steps, env, n, gamma, scale)
            left += num_open
            assert len(got) == len(expected) == sum(step["valid"][env] for step in steps) - num_open
            np.testing.assert_allclose(
                np.array(got, np.float64), np.array(expected, np.float64).reshape(-1, 6), rtol=2e-5, atol=1e-5
            ) if got else None
        assert builder.open_rows == left


def test_rows_are_copies_with_the_right_types():
    builder = NStepBuilder(2, 0.9)
    steps = [make_step(time, [RUNNING, TRUNCATED], [1, 2]) for time in range(3)]
    kept = [{name: column.copy() for name, column in step.items()} for step in steps]
    for step in steps:
        builder.append(step)
    rows = builder.take()
    dtypes = {name: rows[name].dtype.name for name in ("obs", "reward", "discount", "terminated", "truncated")}
    assert dtypes == {
        **dict.fromkeys(("obs", "reward", "discount"), "float32"),
        **dict.fromkeys(("terminated", "truncated"), "bool"),
    }
    for column in rows.values():
        column[...] = 0
    for step, copy in zip(steps, kept, strict=True):
        for name in step:
            np.testing.assert_array_equal(step[name], copy[name])


def test_rollout_example():
    """Three steps of two environments: the first terminates at its second step, the other is truncated at once."""
    builder = RolloutBuilder(0.5, reward_scale=2.0)
    ends = [(RUNNING, TRUNCATED), (TERMINATED, RUNNING), (RUNNING, BOTH)]
    for time, (end, rewards) in enumerate(zip(ends, [(1, 10), (2, 20), (3, 30)], strict=True)):
        builder.append(make_step(time, end, rewards))
    rows = builder.take()
    assert rows["obs"][:, 0].tolist() == [0, 1, 2, 100_000, 100_001, 100_002]
    assert rows["next_obs"][:, 0].tolist() == [0.5, 1.5, 2.5, 100_000.5, 100_001.5, 100_002.5]
    assert rows["reward"].tolist() == [2, 4, 6, 20, 40, 60]
    assert rows["discount"].tolist() == [0.5, 0, 0.5, 0.5, 0.5, 0]
    assert rows["terminated"].tolist() == [False, True, False, False, False, True]
    assert rows["truncated"].tolist() == [False, False, False, True, False, True]
    assert rows["cut"].tolist() == [False, True, True, True, False, True]
    np.testing.assert_array_equal(rows["log_prob"], rows["obs"][:, 0] * 2)
    assert {name: (column.dtype.name, column.shape[1:]) for name, column in rows.items()} == {
        "obs": ("float32", (1,)),
        "action": ("float32", (1,)),
        "reward": ("float32", ()),
        "next_obs": ("float32", (1,)),
        "terminated": ("bool", ()),
        "truncated": ("bool", ()),
        "log_prob": ("float32", ()),
        "state": ("float32", (2,)),
        "discount": ("float32", ()),
        "cut": ("bool", ()),
    }


def test_rollouts_are_cut_before_invalid_steps():
    builder = RolloutBuilder(0.5)
    ends = [(RUNNING, TRUNCATED), (RUNNING, RUNNING), (RUNNING, RUNNING), (RUNNING, TERMINATED), (RUNNING, RUNNING)]
    valid = [(True, True), (True, False), (False, True), (False, True), (True, False)]
    for time, (end, took_it) in enumerate(zip(ends, valid, strict=True)):
        builder.append(make_step(time, end, (1, 1), took_it))
    rows = builder.take()
    assert rows["obs"][:, 0].tolist() == [0, 1, 4, 100_000, 100_002, 100_003]
    assert rows["cut"].tolist() == [False, True, True, True, False, True]
    assert rows["discount"].tolist() == [0.5, 0.5, 0.5, 0.5, 0.5, 0]
    assert rows["truncated"].tolist() == [False, False, False, True, False, False]
    assert "valid" not in rows


def test_a_rollout_without_valid_steps_has_no_rows():
    builder = RolloutBuilder(0.5)
    builder.append(make_step(0, (RUNNING,), (1,), (False,)))
    assert all(len(column) == 0 for column in builder.take().values())


def test_rollout_blocks_are_in_order_and_copied():
    builder, blocks = RolloutBuilder(0.5), []
    steps = [make_step(time, (RUNNING,), (1,)) for time in range(4)]
    for time, step in enumerate(steps):
        builder.append(step)
        if time != 2:
            blocks.append(builder.take())
    assert [block["obs"][:, 0].tolist() for block in blocks] == [[0], [1], [2, 3]]
    assert [block["cut"].tolist() for block in blocks] == [[True], [True], [False, True]]
    blocks[-1]["obs"][:] = -1
    assert steps[-1]["obs"][0, 0] == 3


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("per_block", [1, 4])
def test_single_steps_with_the_priorities_of_n_step_transitions(n_step, per_block):
    def rate(rows):
        return rows["reward"] + 10 * rows["discount"] + rows["next_obs"][:, 0] + rows["terminated"] + rows["log_prob"]

    rng, builders = np.random.default_rng(0), [NStepBuilder(1, 0.9, 2.0), NStepBuilder(n_step, 0.9, 2.0, rate)]
    builders.append(NStepBuilder(n_step, 0.9, 2.0, rate, returns_steps=True))
    taken = [[], [], []]
    for time in range(40):
        step = make_step(
            time, rng.choice(4, 3, p=[0.85, 0.05, 0.05, 0.05]), rng.standard_normal(3), rng.random(3) < 0.95
        )
        for builder, rows in zip(builders, taken, strict=True):
            builder.append({name: column.copy() for name, column in step.items()})
            if time % per_block == per_block - 1:
                rows.append(builder.take())
    single, far, both = ({name: np.concatenate([r[name] for r in rows]) for name in rows[0]} for rows in taken)
    count = len(both["obs"])
    assert count == len(far["obs"])
    order = {value: i for i, value in enumerate(single["obs"][:, 0].tolist())}
    mine = [order[value] for value in both["obs"][:, 0].tolist()]
    for name in single:
        np.testing.assert_array_equal(both[name], single[name][mine], err_msg=name)
    np.testing.assert_array_equal(both["priority"], far["priority"])
    assert builders[2].open_rows == builders[1].open_rows


@pytest.mark.parametrize("returns_steps", [False, True])
def test_a_policy_does_not_rate_a_block_without_complete_rows(returns_steps):
    def rate(rows):
        assert len(rows["obs"]), "most networks raise for no rows"
        return rows["reward"]

    builder = NStepBuilder(3, 0.9, prioritize=rate, returns_steps=returns_steps)
    builder.append(make_step(0, [RUNNING] * 2, [1.0, 2.0]))
    rows = builder.take()
    assert (num_rows(rows), rows["priority"].shape) == (0, (0,))
    for time in (1, 2):
        builder.append(make_step(time, [RUNNING] * 2, [1.0, 2.0]))
    assert builder.take()["priority"].shape == (2,)


ENDS = ([RUNNING, TRUNCATED], [RUNNING, RUNNING], [TERMINATED, RUNNING], [RUNNING, TERMINATED], [RUNNING, RUNNING])
"""The episodes of environment 0 have 3 and more steps, and those of environment 1 have 1, 3 and more."""


def steps(ends=ENDS, valid=None):
    """Rewards of environment 0 are 1, 2, ..., and of environment 1 they are 10, 20, ..."""
    valid = valid or [True] * len(ends)
    return [
        make_step(i, end, [i + 1, 10 * (i + 1)], took) for i, (end, took) in enumerate(zip(ends, valid, strict=True))
    ]


def one_step(n_step=1, scale=1.0, prioritize=None):
    return lambda: NStepBuilder(n_step, 0.5, scale, prioritize)


def taken(builder, steps):
    rows = []
    for step in steps:
        builder.append(step)
        rows.append(builder.take())
    return rows


def test_rows_come_with_the_end_of_their_episode():
    builder = EpisodeBuilder(one_step(scale=2.0), 100)
    rows = taken(builder, steps())
    assert ([num_rows(each) for each in rows], rows[0]["mc_return"].tolist()) == ([1, 0, 3, 3, 0], [20])
    assert rows[2]["mc_return"].tolist() == [2 * (1 + 2 / 2 + 3 / 4), 2 * (2 + 3 / 2), 2 * 3]
    assert rows[3]["mc_return"].tolist() == [2 * (20 + 30 / 2 + 40 / 4), 2 * (30 + 40 / 2), 2 * 40]
    assert (rows[2]["reward"].tolist(), builder.open_rows) == ([2, 4, 6], 2 + 1)
    assert {each["mc_return"].dtype.name for each in rows} == {"float32"}
    assert rows[1].keys() == rows[2].keys()


@pytest.mark.parametrize("n_step", [1, 3])
def test_rows_are_those_of_the_other_builder(n_step):
    plain, ends = one_step(n_step)(), [*ENDS[:3], [TRUNCATED, TERMINATED]]
    for step in steps(ends):
        plain.append(step)
    rows = taken(EpisodeBuilder(one_step(n_step), 100), steps(ends))
    assert sorted(row for each in rows for row in as_tuples(each)) == sorted(as_tuples(plain.take()))


def test_an_episode_ends_before_a_step_that_is_not_valid():
    builder = EpisodeBuilder(one_step(3), 100)
    ends, valid = [[RUNNING, RUNNING]] * 3, [True, np.array([True, False]), True]
    rows = taken(builder, steps(ends, valid))
    assert [num_rows(each) for each in rows] == [0, 1, 0]
    assert as_tuples(rows[1]) == [(100_000, 10.0, 100_000.5, 0.5, False, True)]
    assert (rows[1]["mc_return"].tolist(), builder.open_rows) == ([10], 3 + 1)


def test_a_long_episode_is_cut():
    builder = EpisodeBuilder(one_step(2), 2)
    rows = taken(builder, steps([[RUNNING, TRUNCATED]] * 3))
    assert [num_rows(each) for each in rows] == [1, 3, 1]
    cut = {name: column[:2] for name, column in rows[1].items()}
    assert as_tuples(cut) == [(0, 2.0, 1.5, 0.25, False, False), (1, 2.0, 1.5, 0.5, False, True)]
    assert (cut["mc_return"].tolist(), builder.open_rows) == ([2, 2], 1)


def test_priorities_are_those_of_the_function():
    rows = taken(EpisodeBuilder(one_step(prioritize=lambda rows: rows["obs"][:, 0] + 1), 100), steps())
    assert (rows[2]["priority"].tolist(), rows[1]["priority"].shape) == ([1, 2, 3], (0,))
    builder = EpisodeBuilder(one_step(), 100)
    builder.prioritize = lambda rows: rows["obs"][:, 0] + 2  # as FrameBuilder sets it
    assert taken(builder, steps())[2]["priority"].tolist() == [2, 3, 4]


@pytest.mark.parametrize(("n_step", "later"), [(1, [1, 2, 2]), (2, [2, 2, 2])])
def test_rows_have_the_action_n_steps_later_or_the_last_one(n_step, later):
    builder = EpisodeBuilder(one_step(n_step), 100, ("next_action",), n_step)
    rows = taken(builder, [step | {"action": np.array([[i], [-i]])} for i, step in enumerate(steps())])
    assert rows[2]["next_action"].tolist() == [[i] for i in later]
    assert "mc_return" not in rows[2]
    assert rows[1]["next_action"].shape == (0, 1)


def test_the_next_action_is_not_that_of_a_step_that_failed():
    builder = EpisodeBuilder(one_step(), 100, ("next_action",))
    ends, valid = [[RUNNING, RUNNING]] * 3, [True, np.array([True, False]), True]
    rows = taken(builder, [step | {"action": np.array([[i], [-i - 1]])} for i, step in enumerate(steps(ends, valid))])
    assert rows[1]["next_action"].tolist() == [[-1]]


def test_sequences_get_returns():
    builder = EpisodeBuilder(lambda: SequenceBuilder(2, 0, 0, 0.5), 100)
    rows = taken(builder, steps())
    assert [each["mc_return"].tolist() for each in rows[2:4]] == [[[2.75, 3.5], [3, 0]], [[45, 50], [40, 0]]]
    assert rows[1]["mc_return"].shape == (0, 2)


@pytest.mark.parametrize("saved_after", range(1, 5))
def test_a_restored_builder_goes_on_with_the_same_rows(saved_after):
    whole, first, second = (EpisodeBuilder(one_step(2), 100) for _ in range(3))
    expected = taken(whole, steps())
    taken(first, steps()[:saved_after])
    state = first.state()
    for column in state.values():
        column.setflags(write=False)
    second.load_state(state)
    assert second.open_rows == first.open_rows
    for got, wanted in zip(taken(second, steps()[saved_after:]), expected[saved_after:], strict=True):
        for name, column in wanted.items():
            np.testing.assert_array_equal(got[name], column)
