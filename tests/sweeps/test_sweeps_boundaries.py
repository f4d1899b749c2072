"""Boundaries of searches."""

import pytest

pytest.importorskip("optuna")

from hpos import hpo

from drl_cli.settings.space import Interval
from drl_cli.sweeps.study import Study


@pytest.fixture
def study(tmp_path):
    """A search with one ended trial for each of these objectives, in a new folder."""

    def make(objectives):
        found = Study(tmp_path, {"a": Interval(0, 1), "b": Interval(0, 1)}, [], hpo("random", trials=99), 0)
        for objective in objectives:
            found.end(found.propose(), "done", objective)
        return found

    return make


@pytest.mark.parametrize("objectives", [(0.0, 0.5), (-1.0, -0.5), (-0.5, 0.0)])
def test_an_objective_of_zero_is_compared_as_zero(study, objectives):
    found = study(objectives)
    assert found.best is found.trials[1]


def test_the_importance_of_keys_needs_eight_trials(study):
    assert study([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).importances() == {}
    assert study([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).importances().keys() == {"a", "b"}
