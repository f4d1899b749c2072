"""RunningMoments against numpy on all rows at once."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from drl_cli.utils.moments import RunningMoments

numbers = st.floats(-1e3, 1e3)
blocks = st.lists(
    st.integers(1, 40).flatmap(lambda rows: arrays(np.float64, (rows, 3), elements=numbers)), min_size=1, max_size=8
)


def check(moments, rows):
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-9, atol=1e-7)


@given(blocks)
def test_merged_block_by_block_equals_numpy_on_all_rows(blocks):
    merged = functools.reduce(lambda all, rows: all.merge(RunningMoments.of(rows)), blocks, RunningMoments.empty(3))
    check(merged, np.concatenate(blocks))


@given(blocks, blocks, blocks)
def test_the_order_of_merging_does_not_matter(first, second, third):
    a, b, c = (RunningMoments.of(np.concatenate(part)) for part in (first, second, third))
    for merged in (a.merge(b).merge(c), c.merge(a.merge(b)), b.merge(c.merge(a))):
        check(merged, np.concatenate([*first, *second, *third]))


def test_far_from_zero_nothing_cancels():
    """The textbook formula E[x^2] - E[x]^2 gives 0 here, or less."""
    rows = 1e8 + np.random.default_rng(0).standard_normal((1000, 2))
    merged = functools.reduce(RunningMoments.merge, [RunningMoments.of(part) for part in np.split(rows, 10)])
    np.testing.assert_allclose(merged.variance, rows.var(0), rtol=1e-6)


def test_of_nothing_it_is_neutral_and_stays_as_it_was():
    empty, some = RunningMoments.empty(2), RunningMoments.of(np.array([[1.0, 5.0], [3.0, 5.0]]))
    for merged in (empty.merge(some), some.merge(empty)):
        assert (merged.count, merged.mean.tolist(), merged.variance.tolist()) == (2, [2.0, 5.0], [1.0, 0.0])
    assert empty.merge(empty).count == 0
    assert (empty.count, empty.variance.tolist()) == (0, [0.0, 0.0])


def test_averaging_means_instead_would_be_wrong():
    """Blocks count by their rows."""
    one, nine = RunningMoments.of(np.array([[10.0]])), RunningMoments.of(np.zeros((9, 1)))
    assert one.merge(nine).mean == pytest.approx([1.0])
