"""A group of runs in numbers."""

import numpy as np
import pytest
from run_folders import make_run

from drl_cli.runs.comparison import compare, estimate, over_environments
from drl_cli.runs.groups import Group, grouped
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


def test_medians_over_seeds(group):
    found = compare(
        group([(10, 1.0, 5.0), (30, 9.0, 1.0)], [(20, 4.0, 5.0)], [(10, 1.0, 0.0), (70, 5.0, 6.0)]), threshold=5.0
    )
    assert (found.env_steps, found.wall_s) == (30, 5.0)
    assert (found.threshold, found.num_reached, found.steps_to, found.seconds_to) == (5.0, 3, 20, 4.0)
    assert found.final == estimate(np.array([1.0, 5.0, 6.0]))
    assert set(found.curves) == {"env_steps", "wall_s"}
    assert (found.curves["env_steps"].x[-1], found.curves["wall_s"].x[-1]) == (70, 9.0)


def test_the_goal_is_the_runs_own_where_none_is_said(group):
    found = group([(10, 1.0, 5.0)], stop__return=4.0)
    assert (compare(found, None).threshold, compare(found, None).num_reached) == (4.0, 1)
    assert (compare(found, 9.0).threshold, compare(found, 9.0).num_reached) == (9.0, 0)
    assert compare(found, 0.0).threshold == 0.0


def test_without_any_goal_nothing_reaches_it(group):
    found = compare(group([(10, 1.0, 5.0)]), None)
    assert (found.threshold, found.num_reached, found.steps_to) == (None, 0, np.inf)


def test_an_estimate_is_the_iqm_with_its_interval():
    scores = np.array([1.0, 2.0, 3.0, 50.0])
    low, high = interval([scores], iqm)
    assert estimate(scores) == (2.5, low, high)
    assert np.isnan(estimate(scores[:1])[1:]).all()


def test_a_curve_that_ends_early_is_a_remark_unless_the_run_is_done(group):
    done = compare(group([(10, 1.0, 5.0)], [(100, 2.0, 5.0)]), None)
    assert done.remarks() == []
    failed = Group("Pole", {}, done.group.runs)
    (failed.runs[0].folder / "run.json").write_text('{"status": "failed"}')
    assert compare(failed, None).remarks() == ["its curve ends at 10 of 100 env steps, with s0 (failed)"]
    (failed.runs[1].folder / "run.json").write_text('{"status": "failed"}')
    assert len(compare(failed, None).remarks()) == 1


def test_a_curve_that_ends_a_little_early_is_none(group):
    assert compare(group([(96, 1.0, 5.0)], [(100, 2.0, 5.0)], status="interrupted"), None).remarks() == []
    (line,) = compare(
        Group("Pole", {}, group([(94, 1.0, 5.0)], [(100, 2.0, 5.0)], status="failed", env__name="Other").runs), None
    ).remarks()
    assert "94 of 100" in line


def test_over_environments_scores_are_scaled_by_each_and_drawn_again_within_each(tmp_path):
    for env, unit in (("A", 1.0), ("B", 100.0)):
        for algo, finals in (("dqn", (3.0, 4.0)), ("ppo", (1.0, 2.0))):
            for seed, final in enumerate(finals):
                evals = [(10, 1.0, 0.0), (20, 2.0, final * unit)]
                make_run(tmp_path, f"{algo}{seed}", evals, env__name=env, algo__name=algo, seed=seed)
    make_run(tmp_path, "lonely", [(10, 1.0, 1.0)], env__name="A", algo__name="sac")
    comparisons = [compare(one, None) for one in grouped(Run(path) for path in tmp_path.glob("*/*/*"))]
    found = over_environments(comparisons)
    assert set(found) == {"algo=dqn", "algo=ppo"}
    scores = np.array([3, 4, 3, 4]) / 4
    assert found["algo=dqn"] == estimate(scores[:2], scores[2:])
    assert found["algo=dqn"].value == pytest.approx(3.5 / 4)
    assert found["algo=ppo"].value == pytest.approx(1.5 / 4)
    assert over_environments([one for one in comparisons if one.group.env == "A"]) == {}


def test_an_environment_where_all_returns_are_equal(tmp_path):
    for env in ("A", "B"):
        make_run(tmp_path, "r", [(10, 1.0, 5.0)], env__name=env)
    comparisons = [compare(one, None) for one in grouped(Run(path) for path in tmp_path.glob("*/*/*"))]
    assert [score.value for score in over_environments(comparisons).values()] == [0.0]
