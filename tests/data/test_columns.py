"""Columns that depend on later steps, and the best episodes, in a dataset small enough to check by hand."""

import numpy as np
import pytest
from test_npz import arrays, saved

from drl_cli.data.columns import DataColumns, data_schema
from drl_cli.data.combined import BestEpisodes
from drl_cli.data.open import open_dataset
from drl_cli.types import ActionSpec


@pytest.fixture
def dataset(tmp_path):
    """Three episodes of 4, 4 and 2 steps, with the rewards 0, 1, ..., 9."""
    return open_dataset(saved(tmp_path / "a.npz", **arrays()))


def columns(dataset, *names, n_step=1, gamma=0.5, scale=1.0, clip=None):
    return DataColumns(names, dataset, n_step, gamma, scale, clip)


@pytest.mark.parametrize(
    ("n_step", "steps"), [(1, [1, 2, 3, 3, 5, 6, 7, 7, 9, 9]), (3, [3, 3, 3, 3, 7, 7, 7, 7, 9, 9])]
)
def test_the_next_action_is_that_of_a_later_step_of_the_episode(dataset, n_step, steps):
    actions, found = dataset.read(0, 10)["action"], columns(dataset, "next_action", n_step=n_step)
    np.testing.assert_array_equal(found.read(0, 10)["next_action"], actions[steps])
    np.testing.assert_array_equal(found.read(2, 6)["next_action"], actions[steps][2:6])


def test_returns_end_with_the_episode(dataset):
    first = [0 + 1 / 2 + 2 / 4 + 3 / 8, 1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3]
    second = [4 + 5 / 2 + 6 / 4 + 7 / 8, 5 + 6 / 2 + 7 / 4, 6 + 7 / 2, 7]
    expected = [*first, *second, 8 + 9 / 2, 9]
    np.testing.assert_allclose(columns(dataset, "mc_return").read(0, 10)["mc_return"], expected)
    np.testing.assert_allclose(columns(dataset, "mc_return").read(3, 5)["mc_return"], expected[3:5])
    clipped = columns(dataset, "mc_return", clip=2.0, scale=10.0).read(0, 10)["mc_return"]
    np.testing.assert_allclose(clipped[:4], [12.5, 25.0, 30.0, 20.0])
    assert clipped.dtype == np.float32


def test_no_columns_without_a_name(dataset):
    assert columns(dataset).read(0, 10) == {}
    action = ActionSpec("box", 2, "Box(2,)")
    assert list(data_schema(("mc_return", "next_action"), action)) == ["mc_return", "next_action"]


@pytest.mark.parametrize(("share", "steps"), [(0.1, [4, 5, 6, 7]), (0.5, [4, 5, 6, 7, 8, 9]), (1.0, list(range(10)))])
def test_the_best_episodes_have_the_largest_returns(dataset, share, steps):
    """The returns are 6, 22 and 17."""
    best, rows = BestEpisodes(dataset, share), dataset.read(0, 10)
    assert (best.facts.steps, best.facts.episodes) == (len(steps), len(best.ends))
    np.testing.assert_array_equal(best.facts.returns, [r for r, s in ((6, 0), (22, 4), (17, 8)) if s in steps])
    assert best.facts.terminations == int(share == 1.0)
    assert best.facts.truncations == len(best.ends) - int(share == 1.0)
    for name, column in best.read(0, len(steps)).items():
        np.testing.assert_array_equal(column, rows[name][steps])
    np.testing.assert_array_equal(best.read(1, 3)["reward"], np.asarray(steps)[1:3])
    assert best.ends[-1] == len(steps)


def test_episodes_that_are_not_neighbours_are_joined(tmp_path):
    rewards = np.asarray([9, 9, 9, 9, 0, 0, 0, 0, 9, 9], np.float32)
    best = BestEpisodes(open_dataset(saved(tmp_path / "a.npz", **arrays(rewards=rewards))), 0.6)
    assert best.ends.tolist() == [4, 6]
    assert best.read(0, 6)["reward"].tolist() == [9] * 6
