"""Gumbel MuZero against numbers of mctx 0.0.71, the implementation of the paper's authors."""

import numpy as np
import pytest
import torch
from tree_reference import Tables

from drl_cli.search import run
from drl_cli.search.formulas import Gumbel

NOISE = [
    [0.097374, 0.511079, -0.406933, -0.552646],
    [2.07133, 0.563654, -0.824535, -0.974343],
    [0.137245, 1.884796, 0.93525, 4.924594],
]
PARENTS = {
    16: [
        [0, 0, 0, 0, 1, 2, 4, 3, 1, 6, 9, 6, 9, 6, 13, 14, 1, 14, 17, 14],
        [0, 0, 0, 2, 1, 3, 5, 2, 6, 5, 2, 5, 11, 12, 11, 12, 11, 12, 17, 18],
        [0, 0, 0, 0, 1, 3, 4, 2, 8, 1, 9, 10, 8, 10, 13, 14, 13, 1, 17, 18],
    ],
    3: [
        [0, 0, 0, 1, 2, 3, 1, 5, 6, 7, 5, 7, 5, 12, 13, 1, 13, 16, 13, 19],
        [0, 0, 0, 2, 1, 3, 5, 2, 6, 5, 2, 5, 11, 12, 11, 12, 11, 12, 17, 18],
        [0, 0, 0, 1, 3, 2, 6, 1, 3, 7, 8, 6, 8, 12, 13, 12, 1, 16, 17, 12],
    ],
}
POLICY = {
    16: [
        [0.398502, 0.596751, 0.000637, 0.00411],
        [0.818433, 0.0, 0.000895, 0.180673],
        [0.043187, 0.619033, 0.326641, 0.011139],
    ],
    3: [
        [0.438131, 0.522475, 0.000505, 0.038889],
        [0.818433, 0.0, 0.000895, 0.180673],
        [0.012992, 0.671426, 0.30465, 0.010932],
    ],
}
VISITS = {16: [[8, 8, 2, 2], [9, 0, 3, 8], [2, 8, 2, 8]], 3: [[8, 9, 3, 0], [9, 0, 3, 8], [0, 9, 3, 8]]}
VALUE = {16: [0.71788, 0.929896, -0.039275], 3: [0.616151, 0.929896, 0.00311]}


@pytest.mark.parametrize("considered", [16, 3])
def test_gumbel_equals_mctx(considered: int) -> None:
    model = Tables(0)
    s, a = np.arange(7)[:, None], np.arange(4)[None]
    model.next_state = torch.from_numpy((3 * s + 2 * a + 1) % 7)
    model.rewards = torch.from_numpy(np.sin(1.0 + 2.3 * s + 1.7 * a).astype(np.float32))
    model.discounts = torch.from_numpy(np.where((s + a) % 5 == 0, 0.0, 0.95).astype(np.float32))
    model.logits = torch.from_numpy(np.cos(0.5 * s + 1.1 * a).astype(np.float32))
    model.values = torch.from_numpy((2 * np.sin(1.3 * np.arange(7))).astype(np.float32))
    legal = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]], bool)
    found = run.gumbel(model, torch.tensor([0, 3, 5]), 20, np.array(NOISE), Gumbel(considered), legal)
    assert found.trees.parent[:, 1:].tolist() == PARENTS[considered]
    assert found.visits.tolist() == VISITS[considered]
    assert found.action.tolist() == [1, 0, 1]
    np.testing.assert_allclose(found.policy, POLICY[considered], atol=1e-5)
    np.testing.assert_allclose(found.value, VALUE[considered], atol=1e-5)
