import json

import numpy as np
import pytest

pytest.importorskip("optuna")

from hpos import hpo

from drl_cli.settings.command_line import CommandLine
from drl_cli.settings.space import Interval
from drl_cli.sweeps import multirun
from drl_cli.sweeps.launcher import begin_job
from drl_cli.sweeps.population import Population
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


def test_first_values_and_later_rounds_have_different_random_streams(tmp_path):
    """NumPy ignores zeros at the end of a seed, so that [3, 1, 0] and [3, 1] are the same stream."""
    space = {"a": Interval(0, 1)}
    turns = Population(tmp_path, space, [], hpo("pbt", members=2), 3, round_steps=100).turns
    assert len({turn.values["a"] for turn in turns}) == 2
    later = [space["a"].draw(np.random.default_rng([3, rounds])) for rounds in range(1, 5)]
    assert not {turn.values["a"] for turn in turns} & set(later)


def test_only_a_job_of_a_sweep_tells_its_folder(tmp_path, monkeypatch):
    file = tmp_path / "1.json"
    monkeypatch.setenv("DRL_JOB_FILE", str(file))
    begin_job(tmp_path / "run")
    assert json.loads(file.read_text()) == {"run": str(tmp_path / "run")}
    monkeypatch.delenv("DRL_JOB_FILE")
    begin_job(tmp_path / "other")
    assert json.loads(file.read_text()) == {"run": str(tmp_path / "run")}


def test_a_typed_output_dir_of_a_sweep_is_used(monkeypatch):
    places = []
    monkeypatch.setattr(multirun, "new_sweep", lambda sweep, output_dir, *rest: places.append(output_dir) or 0)
    for words in (["output_dir=a"], ['output_dir="x y"'], []):
        overrides = ["env=Pendulum-v1", *words, "seed=0,1"]
        multirun.run_sweep(CommandLine(["-m"], overrides, config_file=None, is_sweep=True))
    assert places == ["a", "x y", "outputs"]
