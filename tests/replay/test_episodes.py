"""EpisodeBuilder: the rows of another builder, complete episodes at a time, with their returns."""

import numpy as np
import pytest
from test_builders import RUNNING, TERMINATED, TRUNCATED, as_tuples, make_step

from drl_cli.replay.builders import EpisodeBuilder, NStepBuilder
from drl_cli.replay.sequences import SequenceBuilder
from drl_cli.types import num_rows

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
    assert [num_rows(each) for each in rows] == [1, 0, 3, 3, 0]
    assert rows[0]["mc_return"].tolist() == [20]
    assert rows[2]["mc_return"].tolist() == [2 * (1 + 2 / 2 + 3 / 4), 2 * (2 + 3 / 2), 2 * 3]
    assert rows[3]["mc_return"].tolist() == [2 * (20 + 30 / 2 + 40 / 4), 2 * (30 + 40 / 2), 2 * 40]
    assert rows[2]["reward"].tolist() == [2, 4, 6]
    assert builder.open_rows == 2 + 1
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
    assert rows[1]["mc_return"].tolist() == [10]
    assert builder.open_rows == 3 + 1


def test_a_long_episode_is_cut():
    builder = EpisodeBuilder(one_step(2), 2)
    rows = taken(builder, steps([[RUNNING, TRUNCATED]] * 3))
    assert [num_rows(each) for each in rows] == [1, 3, 1]
    cut = {name: column[:2] for name, column in rows[1].items()}
    assert as_tuples(cut) == [(0, 2.0, 1.5, 0.25, False, False), (1, 2.0, 1.5, 0.5, False, True)]
    assert cut["mc_return"].tolist() == [2, 2]
    assert builder.open_rows == 1


def test_priorities_are_those_of_the_function():
    rows = taken(EpisodeBuilder(one_step(prioritize=lambda rows: rows["obs"][:, 0] + 1), 100), steps())
    assert rows[2]["priority"].tolist() == [1, 2, 3]
    assert rows[1]["priority"].shape == (0,)
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
