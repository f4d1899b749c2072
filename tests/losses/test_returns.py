"""Generalised advantages: worked examples, and the definition as a double sum on random rollouts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.losses.returns import gae, n_step_windows

REWARD, VALUE, NEXT = [1, 2, 3, 4], [10, 20, 30, 40], [20, 30, 40, 50]
# gamma 0.5, lambda 0.5: delta_i = r_i + d_i V'_i - V_i. Running on: 1, -3, -7, -11 and then from the end
# -11; -7 - 11/4; -3 - 9.75/4; 1 - 5.4375/4.
EXAMPLES = {
    "running": ([0.5, 0.5, 0.5, 0.5], [0, 0, 0, 1], [-0.359375, -5.4375, -9.75, -11]),
    "the last row ends the chain anyway": ([0.5, 0.5, 0.5, 0.5], [0, 0, 0, 0], [-0.359375, -5.4375, -9.75, -11]),
    # Terminated at 1: delta 2 - 20, without the next value.
    "terminated": ([0.5, 0.0, 0.5, 0.5], [0, 1, 0, 1], [1 - 18 / 4, -18, -9.75, -11]),
    # Truncated at 1: delta -3 with the next value, but nothing of row 2.
    "truncated": ([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1], [0.25, -3, -9.75, -11]),
}


def arrays(*columns):
    return [np.array(column, np.float32) for column in columns]


@pytest.mark.parametrize(("discount", "cut", "expected"), EXAMPLES.values(), ids=EXAMPLES)
def test_worked_examples(discount, cut, expected):
    advantage = gae(*arrays(REWARD, discount, VALUE, NEXT), np.array(cut, bool), 0.5)
    assert advantage.dtype == np.float32
    assert advantage.tolist() == pytest.approx(expected)


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
    kept = [column.copy() for column in (reward, discount, value, next_value, cut)]
    advantage = gae(reward, discount, value, next_value, cut, lambda_)
    expected = by_definition(*(c.tolist() for c in (reward, discount, value, next_value, cut)), lambda_)
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-4)
    assert all(map(np.array_equal, kept, (reward, discount, value, next_value, cut)))


def test_lambda_0_is_one_step_and_lambda_1_is_all_rewards():
    reward, value, next_value = arrays(REWARD, VALUE, NEXT)
    discount, cut = np.full(4, 0.5, np.float32), np.array([0, 0, 0, 1], bool)
    assert gae(reward, discount, value, next_value, cut, 0.0).tolist() == [1, -3, -7, -11]
    # 1 + 2/2 + 3/4 + 4/8 + 50/16 - 10, 2 + 3/2 + 4/4 + 50/8 - 20, ...
    expected = [-3.625, -9.25, -12.5, -11]
    assert gae(reward, discount, value, next_value, cut, 1.0).tolist() == pytest.approx(expected, rel=1e-6)


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


def test_a_window_of_three_steps_literals():
    reward, discount = torch.tensor([[1.0, 2.0, 4.0, 8.0]]), torch.tensor([[0.5, 0.25, 0.5, 0.5]])
    total, product, last = n_step_windows(reward, discount, torch.ones(1, 4, dtype=torch.bool), 3)
    assert total.tolist() == [[2.5, 4.0, 8.0, 8.0]]  # 1 + 0.5 2 + 0.125 4; 2 + 0.25 4 + 0.125 8; 4 + 0.5 8; 8
    assert product.tolist() == [[0.0625, 0.0625, 0.25, 0.5]]
    assert last.tolist() == [[2, 3, 3, 3]]
