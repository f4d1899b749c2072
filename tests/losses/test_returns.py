"""Generalised advantages: worked examples, and the definition as a double sum on random rollouts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.losses.returns import gae

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
