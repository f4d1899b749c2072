import math

import numpy as np
import pytest

from drl_cli.deploy.export import Parity, difference
from drl_cli.envs.units import ArraySpec

BOX = ArraySpec("action", (), (2,), "float32", low=[-1.0, 0.0], high=[1.0, 200.0])
FREE = ArraySpec("action", (), (2,), "float32", low=[None, 0.0], high=[None, 0.5])
TWO = ArraySpec("action", (), (2,), "int64", start=[1, 5], choices=(3, 2))


def test_boxes_differ_in_units_of_half_the_range_or_of_one():
    actions = np.array([[0.0, 100.0], [0.5, 50.0]], np.float32)
    assert difference(BOX, actions, actions + np.array([0.0, 1.0]), []) == pytest.approx(0.01)
    assert difference(BOX, actions, actions - np.array([0.25, 1.0]), []) == pytest.approx(0.25)
    assert difference(FREE, actions, actions + np.array([0.5, 0.0]), []) == pytest.approx(0.5)
    assert difference(FREE, actions, actions + np.array([0.0, 0.125]), []) == pytest.approx(0.125)
    assert math.isnan(difference(BOX, actions, actions * np.nan, []))


def test_choices_differ_by_their_loss_of_value():
    values = [np.array([[1.0, 2.0, 2.5], [0.0, 8.0, 4.0]]), np.array([[1.0, 1.0], [0.0, 0.0]])]
    ours = np.array([[3, 5], [2, 5]])
    assert difference(TWO, ours, ours, values) == 0
    assert difference(TWO, np.array([[2, 6], [2, 6]]), ours, values) == pytest.approx(0.5 / 2.5)
    assert difference(TWO, np.array([[3, 5], [3, 6]]), ours, values) == pytest.approx(4 / 8)
    assert difference(TWO, ours, ours, []) == 0
    assert difference(TWO, np.array([[3, 5], [2, 6]]), ours, []) == math.inf


def parity(largest=0.0, exported=10.0):
    return Parity(1000, largest, 1e-5, 20, 10.0, exported, 0.5)


def test_policies_that_differ():
    assert parity().problem() is None
    assert parity(1e-5, 11.4).problem() is None
    for largest in (2e-5, math.inf, math.nan):
        assert "its actions are up to" in parity(largest).problem()
    assert "its mean return is 11.6" in parity(exported=11.6).problem()
    assert "its mean return is 8.4" in parity(exported=8.4).problem()
