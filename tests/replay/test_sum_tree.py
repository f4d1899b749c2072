"""SumTree equals a naive array; values are exact whole numbers where that is possible."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.replay.samplers import SumTree

VALUES = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


@st.composite
def histories(draw):
    """Draw a capacity (for one to three levels), and calls of `set` with repeated slots."""
    capacity = draw(st.one_of(st.integers(1, 70), st.sampled_from([4096, 4097, 5000, 65_536, 65_537, 70_001])))
    pairs = st.lists(st.tuples(st.integers(0, capacity - 1), VALUES), min_size=0, max_size=100)
    return capacity, draw(st.lists(pairs, min_size=1, max_size=6))


def check_sums(tree):
    """Check that every node is exactly the sum of its children."""
    for below, above in pairwise(tree.levels):
        sums = np.einsum("ij->i", below.reshape(-1, 16))
        np.testing.assert_array_equal(above[: len(sums)], sums)
        assert not above[len(sums) :].any()


@settings(deadline=None, max_examples=100)
@given(histories(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20), st.booleans())
def test_equals_a_naive_array(history, shares, asks_each_time):
    capacity, calls = history
    tree, naive = SumTree(capacity), np.zeros(capacity)
    for call in calls:
        tree.set(np.array([slot for slot, _ in call], np.int64), np.array([value for _, value in call]))
        for slot, value in call:
            naive[slot] = value
        np.testing.assert_array_equal(tree.values, naive)
        if asks_each_time:
            assert tree.maximum == naive.max()
        check_sums(tree)
    assert tree.maximum == naive.max()
    assert tree.total == pytest.approx(naive.sum(), rel=1e-12)
    if tree.total == 0:
        return
    mass = np.minimum(np.array(shares) * tree.total, np.nextafter(tree.total, 0))
    found = tree.find(mass)
    assert (naive[found] > 0).all()
    upper, slack = naive.cumsum(), 1e-9 * tree.total
    assert (mass <= upper[found] + slack).all()
    assert (mass >= upper[found] - naive[found] - slack).all()


@pytest.mark.parametrize("capacity", [1, 7, 8, 1000, 70_000])
def test_integers_are_found_exactly(capacity):
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), np.arange(capacity) % 3 + 1.0)
    expected = np.repeat(np.arange(capacity), np.arange(capacity) % 3 + 1)
    assert tree.total == len(expected)
    assert tree.find(np.arange(tree.total)).tolist() == expected.tolist()
    assert tree.find(np.arange(tree.total)[:, None] + 0.5).tolist() == expected[:, None].tolist()


@pytest.mark.parametrize("capacity", [777, 66_000])
def test_rounding_errors_do_not_accumulate(capacity):
    tree, rng = SumTree(capacity), np.random.default_rng(0)
    for _ in range(2000):
        tree.set(rng.integers(0, capacity, 20), 10.0 ** rng.uniform(-8, 8, 20))
    check_sums(tree)
    tree.set(np.arange(capacity), np.ones(capacity))
    assert tree.total == capacity
    tree.set(np.arange(capacity), 0.0)
    assert not any(level.any() for level in tree.levels)


def test_a_mass_at_the_total_finds_the_last_slot_with_a_value():
    tree = SumTree(9)
    tree.set(np.array([1, 5]), np.array([0.1, 0.2]))
    assert tree.find(np.array([tree.total, 2 * tree.total])).tolist() == [5, 5]


def test_nothing_to_set_or_find():
    tree = SumTree(5)
    tree.set(np.array([], np.int64), np.array([]))
    assert (tree.total, tree.find(np.array([])).shape) == (0, (0,))
