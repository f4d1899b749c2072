"""Manage: which evaluation is the best one, also when it starts on the folder of a run that goes on."""

import csv

import numpy as np
import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.runtime.files.checkpoint import read_manifest
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.roles.evaluator import Score
from drl_cli.runtime.roles.manage import Manage

PARAMS = np.zeros(3, np.float32)


@pytest.fixture
def make_manage(tmp_path):
    """A manage of the run in tmp_path whose evaluations score as told: `means` in order."""
    config = make_config(*TINY, COUNTER)
    (tmp_path / "checkpoints").mkdir()

    def make(*means):
        manage, scores = Manage(config, read_spec(config.env), tmp_path, 0.0), iter(means)
        manage._play = lambda part, params: Score(np.full(2, next(scores)), np.ones(2, np.int64), 0)
        return manage

    return make


def evaluate(manage, *versions):
    return [manage.evaluate(LoadParams(version, version, 10 * version), PARAMS).is_best for version in versions]


def best(manage):
    manifest = read_manifest(manage.checkpoints / "best")
    return manifest["version"], manifest["mean"]


def test_the_best_is_the_first_with_the_highest_mean(make_manage):
    manage = make_manage(5.0, 5.0, 4.0, 6.0, 6.0)
    assert evaluate(manage, 1, 2, 3, 4, 5) == [True, False, False, True, False]
    assert best(manage) == (4, 6.0)


def test_one_that_starts_on_a_runs_folder_knows_the_best_so_far(make_manage):
    first = make_manage(5.0)
    evaluate(first, 1)
    first.close("done")
    second = make_manage(4.0, 5.0, 5.5)
    assert evaluate(second, 2) == [False]
    assert best(second) == (1, 5.0)
    assert evaluate(second, 3, 4) == [False, True]
    assert best(second) == (4, 5.5)
    rows = list(csv.DictReader((second.folder / "eval.csv").open()))
    assert [row["version"] for row in rows] == ["1", "2", "3", "4"]


def test_evaluations_are_on_episodes_that_no_worker_begins_with(run_graph):
    graph = run_graph(COUNTER, "mode=sync", "worker.num=2", "stop.return=5")
    evaluators = graph.manage.handle.role.evaluators
    evaluated = [seed for evaluator in evaluators for seed in evaluator.seeds]
    workers = [member.handle.role for member in graph.pool.members]
    assert len(set(evaluated)) == len(evaluated) == 4  # two, and two that confirm
    assert not set(evaluated) & {seed for worker in workers for seed in worker.envs.seeds}
