"""Generalised advantages: equal to the definition as a double sum on random rollouts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.losses.returns import gae, n_step_windows


def by_definition(reward, discount, value, next_value, cut, lambda_):
    """A_i = sum_l (prod_{j<l} discount_{i+j} lambda) delta_{i+l}, up to the end of the row's own segment."""
    advantages = []
    for i in range(len(reward)):
        total, weight = 0.0, 1.0
        for j in range(i, len(reward)):
            total += weight * (reward[j] + discount[j] * next_value[j] - value[j])
            if cut[j]:
                break
            weight *= discount[j] * lambda_
        advantages.append(total)
    return advantages


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_equals_the_definition(rows, gamma, lambda_, seed):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.standard_normal((3, rows)).astype(np.float32)
    terminated, cut = rng.random((2, rows)) < 0.2
    cut |= terminated
    discount = np.where(terminated, 0, gamma).astype(np.float32)
    columns = [torch.from_numpy(column) for column in (reward, discount, value, next_value, cut)]
    kept = [column.clone() for column in columns]
    advantage = gae(*columns, lambda_)
    expected = by_definition(*(c.tolist() for c in columns), lambda_)
    assert advantage.dtype == torch.float32
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-4)
    assert all(map(torch.equal, kept, columns))


def windows_by_definition(reward, discount, real, n_step):
    """reward, discount and last step of each real step's window."""
    for t in np.flatnonzero(real):
        total, product = 0.0, 1.0
        for last in range(t, len(reward)):
            total, product = total + product * reward[last], product * discount[last]
            if last - t + 1 == n_step or last + 1 == len(reward) or not real[last + 1]:
                break
        yield t, total, product, last


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_windows_equal_the_definition(length, n_step, seed):
    rng = np.random.default_rng(seed)
    reward, discount = rng.standard_normal((3, length)), rng.uniform(0.5, 1, (3, length))
    first, last = np.sort(rng.integers(0, length + 1, (3, 2)), axis=1).T
    mask = (np.arange(length) >= first[:, None]) & (np.arange(length) < last[:, None])
    discount[np.arange(3)[last > first], last[last > first] - 1] = 0.0  # terminated
    windows = n_step_windows(*map(torch.from_numpy, (reward, discount, mask)), n_step)
    for row in range(3):
        for t, *expected in windows_by_definition(reward[row], discount[row], mask[row], n_step):
            assert [part[row, t].item() for part in windows] == pytest.approx(expected)
