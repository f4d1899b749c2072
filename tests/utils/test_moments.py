import functools

import numpy as np
import pytest
from hypothesis import given, settings
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


@pytest.mark.slow
@settings(max_examples=30)
@given(blocks)
def test_merged_moments_equal_numpy_in_any_order(blocks):
    parts = [RunningMoments.of(rows) for rows in blocks]
    half = len(parts) // 2
    first, later = (
        functools.reduce(RunningMoments.merge, some, RunningMoments.empty(3)) for some in (parts[:half], parts[half:])
    )
    for merged in (functools.reduce(RunningMoments.merge, parts), later.merge(first)):
        check(merged, np.concatenate(blocks))
        check(RunningMoments.unpacked(merged.packed()), np.concatenate(blocks))


def test_values_far_from_zero_do_not_cancel():
    """The formula E[x^2] - E[x]^2 gives 0 or less here."""
    rows = 1e8 + np.random.default_rng(0).standard_normal((1000, 2))
    merged = functools.reduce(RunningMoments.merge, [RunningMoments.of(part) for part in np.split(rows, 10)])
    np.testing.assert_allclose(merged.variance, rows.var(0), rtol=1e-6)


def test_merging_no_rows_changes_nothing():
    empty, some = RunningMoments.empty(2), RunningMoments.of(np.array([[1.0, 5.0], [3.0, 5.0]]))
    for merged in (empty.merge(some), some.merge(empty)):
        assert (merged.count, merged.mean.tolist(), merged.variance.tolist()) == (2, [2.0, 5.0], [1.0, 0.0])
    assert (empty.merge(empty).count, (empty.count, empty.variance.tolist())) == (0, (0, [0.0, 0.0]))
