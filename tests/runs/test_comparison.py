import json

import numpy as np
import pytest
from run_folders import make_run

from drl_cli.runs.comparison import compare, estimate, over_environments
from drl_cli.runs.groups import grouped
from drl_cli.runs.run import Run
from drl_cli.runs.statistics import interval, iqm


@pytest.fixture
def group(tmp_path):
    """Make a group of runs, one for each list of evaluations."""

    def make(*evals, **options):
        folders = [make_run(tmp_path, f"s{i}", each, seed=i, **options) for i, each in enumerate(evals)]
        (found,) = grouped(map(Run, folders))
        return found

    return make


def compare_all(folder):
    return [compare(one, None) for one in grouped(Run(path) for path in folder.glob("*/*/*"))]


def test_medians_over_seeds(group):
    runs = group([(10, 1.0, 5.0), (30, 9.0, 1.0)], [(20, 4.0, 5.0)], [(10, 1.0, 0.0), (70, 5.0, 6.0)])
    found = compare(runs, threshold=5.0)
    assert (found.position, found.wall_s) == (30, 5.0)
    assert (found.threshold, found.num_reached, found.steps_to, found.seconds_to) == (5.0, 3, 20, 4.0)
    assert found.final == estimate(np.array([1.0, 5.0, 6.0]))
    assert {axis: curve.x[-1] for axis, curve in found.curves.items()} == {"env_steps": 70, "wall_s": 9.0}


def test_the_default_threshold_is_the_runs_own(group):
    found = group([(10, 1.0, 5.0)], stop__return=4.0)
    for threshold, expected in ((None, (4.0, 1)), (9.0, (9.0, 0)), (0.0, (0.0, 1))):
        comparison = compare(found, threshold)
        assert (comparison.threshold, comparison.num_reached) == expected


def test_without_a_threshold_no_run_reaches_it(group):
    without = compare(group([(10, 1.0, 5.0)]), None)
    assert (without.threshold, without.num_reached, without.steps_to) == (None, 0, np.inf)


def test_an_estimate_is_the_iqm_with_its_interval():
    scores = np.array([1.0, 2.0, 3.0, 50.0])
    assert estimate(scores) == (2.5, *interval([scores], iqm))
    assert np.isnan(estimate(scores[:1])[1:]).all()


@pytest.mark.parametrize(
    ("end", "statuses", "remarks"),
    [
        (10, ("done", "done"), []),
        (10, ("failed", "done"), ["its curve ends at 10 of 100 env steps, with s0 (failed)"]),
        (10, ("failed", "failed"), ["its curve ends at 10 of 100 env steps, with s0 (failed)"]),
        (94, ("failed", "failed"), ["its curve ends at 94 of 100 env steps, with s0 (failed)"]),
        (96, ("failed", "failed"), []),
    ],
)
def test_a_remark_if_an_unfinished_run_ends_the_curve_early(group, end, statuses, remarks):
    found = group([(end, 1.0, 5.0)], [(100, 2.0, 5.0)])
    for run, status in zip(found.runs, statuses, strict=True):
        (run.folder / "run.json").write_text(json.dumps({"status": status}))
    assert compare(found, None).remarks() == remarks


def test_scores_are_scaled_and_resampled_in_each_environment(tmp_path):
    for env, unit in (("A", 1.0), ("B", 100.0)):
        for algo, finals in (("dqn", (3.0, 4.0)), ("ppo", (1.0, 2.0))):
            for seed, final in enumerate(finals):
                evals = [(10, 1.0, 0.0), (20, 2.0, final * unit)]
                make_run(tmp_path, f"{algo}{seed}", evals, env__name=env, algo__name=algo, seed=seed)
    make_run(tmp_path, "lonely", [(10, 1.0, 1.0)], env__name="A", algo__name="sac")
    comparisons = compare_all(tmp_path)
    found = over_environments(comparisons)
    scores = np.array([3, 4, 3, 4]) / 4
    assert found["algo=dqn"] == estimate(scores[:2], scores[2:])
    assert [found[f"algo={algo}"].value for algo in ("dqn", "ppo")] == pytest.approx([3.5 / 4, 1.5 / 4])
    assert len(found) == 2
    assert over_environments([one for one in comparisons if one.group.env == "A"]) == {}


def test_equal_returns_in_an_environment_are_scaled_to_0(tmp_path):
    for env in ("A", "B"):
        make_run(tmp_path, "r", [(10, 1.0, 5.0)], env__name=env)
    assert [score.value for score in over_environments(compare_all(tmp_path)).values()] == [0.0]
