"""Figures about datasets: the part of the action space that occurs, and normalised scores."""

import numpy as np
import pytest

from drl_cli.data.dataset import DatasetError, coverage, normalised
from drl_cli.data.open import open_dataset

STEPS = 1 << 17  # more than one part


@pytest.fixture
def name(tmp_path):
    return str(tmp_path / "a.npz")


def saved(name, actions):
    ends = np.arange(STEPS) % 10 == 9
    flags = {"rewards": np.ones(STEPS), "terminations": ends, "truncations": np.zeros(STEPS, bool)}
    np.savez(name, observations=np.zeros((STEPS, 2)), actions=actions, **flags)
    return name


@pytest.mark.parametrize(
    ("actions", "covered"),
    [
        (np.linspace([-1, 0], [1, 0], STEPS), (1 + 1 / 20) / 2),
        (np.repeat([[-1.0], [1.0]], STEPS // 2, 0), 2 / 20),
        (np.where(np.arange(STEPS) == 0, 3, 0), 2 / 4),
        (np.stack([np.arange(STEPS) % 2, np.where(np.arange(STEPS) == 0, 4, 0)], 1), (1 + 2 / 5) / 2),
    ],
)
def test_coverage_of_actions(name, actions, covered):
    assert coverage(open_dataset(saved(name, actions))) == pytest.approx(covered)


def test_normalised_scores():
    assert [normalised(score, (-10.0, 30.0)) for score in (-10, 30, 10, 50)] == [0, 100, 50, 150]


@pytest.mark.parametrize("reference", [[1.0], [1, 2, 3], [2, 1], [1, 1], [float("nan"), 1], [0, float("inf")]])
def test_wrong_references(name, reference):
    with pytest.raises(DatasetError, match=r"say \[random,expert\]"):
        open_dataset(saved(name, np.arange(STEPS) % 3), reference=reference)
