import json

import numpy as np
import pytest
import yaml
from run_folders import make_run

from drl_cli.run_folder.resume import resume
from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.comparison import RESAMPLES, compare, estimate, interval, iqm, over_environments
from drl_cli.runs.figure import make_figure
from drl_cli.runs.groups import grouped
from drl_cli.runs.named import with_config_of_run
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose


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
    found, scores = over_environments(comparisons), np.array([3, 4, 3, 4]) / 4
    assert found["algo=dqn"] == estimate(scores[:2], scores[2:])
    assert [found[f"algo={algo}"].value for algo in ("dqn", "ppo")] == pytest.approx([3.5 / 4, 1.5 / 4])
    assert (len(found), over_environments([one for one in comparisons if one.group.env == "A"])) == (2, {})


def test_equal_returns_in_an_environment_are_scaled_to_0(tmp_path):
    for env in ("A", "B"):
        make_run(tmp_path, "r", [(10, 1.0, 5.0)], env__name=env)
    assert [score.value for score in over_environments(compare_all(tmp_path)).values()] == [0.0]


def test_weights_are_loaded_only_before_the_first_checkpoint(copied):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["load_weights"] = "elsewhere"
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    command = with_config_of_run(read_command(["resume=latest", "total_env_steps=320"]))
    composed = compose(command.overrides, command.config_file)
    assert composed.load_weights == "elsewhere"
    resumed = resume(composed, [])
    assert (resumed.config.load_weights, resumed.config.random_steps) == (None, composed.random_steps)


def legend(tmp_path, by=()):
    groups = grouped([Run(path) for path in tmp_path.glob("*/*/*")], by)
    return [text.get_text() for text in make_figure([compare(group, None) for group in groups]).legends[0].get_texts()]


@pytest.mark.parametrize(
    ("last", "unit"), [(299.0, "s"), (300.0, "min"), (7199.0, "min"), (7200.0, "h"), (9000.0, "h")]
)
def test_the_longest_run_gives_the_unit_of_time(tmp_path, last, unit):
    make_run(tmp_path, "a", [(10, last / 2, 1.0), (20, last, 2.0)])
    figure = make_figure([compare(group, 5.0) for group in grouped([Run(next(tmp_path.glob("*/*/*")))])])
    assert figure.axes[1].get_xlabel() == f"wall-clock time [{unit}]"


def test_a_group_is_known_by_its_values_and_not_by_its_runs(tmp_path):
    runs = [Run(make_run(tmp_path, name, [(10, 1.0, 1.0)], seed=seed)) for seed, name in enumerate("ab")]
    (first,), (second,) = (grouped([run]) for run in runs)
    assert first.runs != second.runs
    assert first == second


@pytest.mark.parametrize(
    ("scores", "expected"),
    [  # scipy.stats.trim_mean(scores, 0.25)
        *[([7.0], 7.0), ([1.0, 2.0, 3.0, 100.0], 2.5), ([5.0, -50.0, 1.0, 2.0, 3.0], 2.0)],
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0], 3.5),
    ],
)
def test_iqm_is_the_quarter_trimmed_mean(scores, expected):
    assert iqm(np.array(scores)) == pytest.approx(expected)


def test_the_interval_of_a_mean_is_the_normal_distributions():
    scores = np.random.default_rng(2).normal(10.0, 3.0, 400)
    low, high = interval([scores], np.mean)
    half = 1.96 * scores.std() / np.sqrt(400)
    assert low == pytest.approx(scores.mean() - half, abs=0.05)
    assert high == pytest.approx(scores.mean() + half, abs=0.05)


def test_resampling_stays_within_its_stratum():
    low, high = interval([np.full(3, 1.0), np.full(5, 100.0)], np.mean)
    assert low == high == pytest.approx((3 + 500) / 8)
    spread = interval([np.concatenate([np.full(3, 1.0), np.full(5, 100.0)])], np.mean)
    assert spread[0] < 40 < 90 < spread[1]


def test_one_score_has_no_interval():
    assert np.isnan(interval([np.array([3.0])], np.mean)).all()
    assert np.isnan(interval([np.array([1.0, 2.0]), np.array([3.0])], np.mean)).all()
    assert interval([np.ones((1, 4))], iqm)[0].shape == (4,)


def test_equal_scores_give_equal_intervals_for_any_number_drawn_at_once(monkeypatch):
    scores = np.random.default_rng(3).standard_normal((6, 2))
    at_once = interval([scores], iqm)
    np.testing.assert_array_equal(at_once, interval([scores.copy()], iqm))
    monkeypatch.setattr("drl_cli.runs.comparison.MAX_DRAWN", 12 * 300)
    counts = []

    def counting(values, axis):
        counts.append(len(values))
        return iqm(values, axis)

    in_parts = interval([scores], counting)
    assert (counts, sum(counts)) == ([300] * 6 + [200], RESAMPLES)
    np.testing.assert_allclose(at_once, in_parts, atol=0.2)
