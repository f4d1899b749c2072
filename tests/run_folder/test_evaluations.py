import numpy as np

from drl_cli.run_folder.evaluations import Curve, read_curve
from drl_cli.runs.comparison import MAX_POINTS, join


def curve(*points):
    """Make a curve of (env_steps, return); a step takes a tenth of a second."""
    steps, returns = np.array(points, float).T
    return Curve(steps, steps / 10, returns)


def test_a_return_holds_until_the_next_evaluation():
    one = curve((10, 1.0), (30, 5.0))
    np.testing.assert_array_equal(one.at("env_steps", np.array([9, 10, 29, 30, 99])), [np.nan, 1, 1, 5, 5])
    np.testing.assert_array_equal(one.at("wall_s", np.array([0.9, 1.0, 2.9, 3.0])), [np.nan, 1, 1, 5])


def test_best_final_and_the_first_evaluation_above_a_threshold():
    one = curve((10, 1.0), (20, 5.0), (30, 7.0), (40, 6.0))
    assert (one.best, one.final, len(one)) == (7.0, 6.0, 4)
    assert (one.reaches(5.0), one.reaches(7.5)) == ((20.0, 2.0), (np.inf, np.inf))
    empty = Curve(*np.zeros((3, 0)))
    assert ((empty.best, empty.final, len(empty)), empty.reaches(-1e9)) == ((None, None, 0), (np.inf, np.inf))


def test_runs_with_different_grids_are_joined_where_all_have_evaluations():
    joint = join([curve((10, 0.0), (30, 4.0), (60, 9.0)), curve((20, 2.0), (40, 6.0))], [False, False], "env_steps")
    np.testing.assert_array_equal(joint.x, [20, 30, 40])
    np.testing.assert_array_equal(joint.iqm, [1.0, 3.0, 5.0])
    assert joint.held_from == np.inf
    assert ((joint.low <= joint.iqm) & (joint.iqm <= joint.high)).all()
    assert (joint.low[0], joint.high[0]) == (0.0, 2.0)
    apart = join([curve((10, 0.0)), curve((20, 1.0))], [False, False], "env_steps")
    assert (apart.x.tolist(), apart.iqm.tolist()) == ([20], [0.5])


def test_a_finished_run_keeps_its_last_return_and_does_not_end_the_curve():
    runs = [curve((10, 0.0), (20, 8.0)), curve((10, 2.0), (20, 4.0), (50, 6.0))]
    joint = join(runs, [True, False], "env_steps")
    np.testing.assert_array_equal(joint.x, [10, 20, 50])
    np.testing.assert_array_equal(joint.iqm, [1.0, 6.0, 7.0])
    assert joint.held_from == 20
    assert [join(runs, [done] * 2, "env_steps").x[-1] for done in (True, False)] == [50, 20]
    assert join(runs, [True, False], "wall_s").held_from == 2.0


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    joint = join([curve(*((i, 0.5 * i) for i in range(1000)))], [False], "env_steps")
    assert (len(joint.x), joint.x[0], joint.x[-1]) == (MAX_POINTS, 0, 999)
    np.testing.assert_array_equal(joint.iqm, joint.x / 2)


def test_eval_csv_is_read_by_its_header_without_incomplete_lines(tmp_path):
    lines = ["200,1,0.5,2.5,-7.5", "150,1", "160,1,0,2.0,nan", "100,0,0.5,1.5,-9", "300,2,0.5,3.5,-1"]
    (tmp_path / "eval.csv").write_text("\n".join(["env_steps,version,success,wall_s,mean", *lines]))
    read = read_curve(tmp_path / "eval.csv")
    parts = [part.tolist() for part in (read.positions, read.wall_s, read.returns)]
    assert parts == [[100, 200], [1.5, 2.5], [-9, -7.5]]
