import json

import numpy as np
import pytest

pytest.importorskip("optuna")

from hpos import hpo

from drl_cli.settings.command_line import CommandLine
from drl_cli.settings.space import Interval
from drl_cli.sweeps import multirun, results
from drl_cli.sweeps import population as population_module
from drl_cli.sweeps.launcher import begin_job
from drl_cli.sweeps.population import Population, train
from drl_cli.sweeps.study import Study
from drl_cli.sweeps.sweep import Sweep


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


class Played:
    """Rounds in which the members' scores are known in advance."""

    def __init__(self, sweep, population):
        self.population, self.killed_jobs = population, None

    def begin(self):
        return []

    def end(self):
        for turn, score in zip(self.population.turns, (3.0, 9.0), strict=True):
            turn.state, turn.score, turn.env_steps = "done", score, self.population.goal


def test_members_and_rounds_are_printed_from_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(population_module, "Rounds", Played)
    monkeypatch.setattr(population_module, "run_jobs", lambda *args: None)
    monkeypatch.setattr(population_module, "finish_population", lambda *args: 0)
    config = hpo("pbt", members=2, rounds=2, quantile=0.5, resample=0.0)
    population = Population(tmp_path, {"a": Interval(0.25, 1)}, [], config, 0, round_steps=100)
    sweep = Sweep(tmp_path, [])
    sweep.add([["seed=0"], ["seed=1"]])
    monkeypatch.setattr(type(sweep.jobs[0]), "has_begun", True)
    assert train(sweep, population, []) == 0
    lines = [line.split("  a=")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        *[f"population of 2: round 1 of 2  ->  {tmp_path}", "round 1 of 2: best member 2  9.0"],
        *["  member 1 goes on from member 2", "round 2 of 2: best member 2  9.0"],
    ]


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


@pytest.mark.parametrize(("trials", "width"), [(7, 5.0), (8, 9.0)])
def test_a_search_figure_is_wider_with_the_importance_of_keys(study, trials, width):
    figure = results.search_figure(study([float(i) for i in range(trials)]))
    assert figure.get_size_inches().tolist() == [width, 3.5]
    assert [line.get_markersize() for line in figure.axes[0].lines if line.get_linestyle() == "None"] == [4]


def test_a_typed_output_dir_of_a_sweep_is_used(monkeypatch):
    places = []
    monkeypatch.setattr(multirun, "new_sweep", lambda sweep, output_dir, *rest: places.append(output_dir) or 0)
    for words in (["output_dir=a"], ['output_dir="x y"'], []):
        overrides = ["env=Pendulum-v1", *words, "seed=0,1"]
        multirun.run_sweep(CommandLine(["-m"], overrides, config_file=None, is_sweep=True))
    assert places == ["a", "x y", "outputs"]
