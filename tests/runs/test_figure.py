"""The lines, bands and legend of the figure."""

import numpy as np
import pytest
from run_folders import make_run

from drl_cli.runs.comparison import compare
from drl_cli.runs.figure import make_figure
from drl_cli.runs.groups import grouped
from drl_cli.runs.run import Run


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    """Two groups on Pole, one with a run that finished early, and one group on Lander."""
    tmp_path = tmp_path_factory.mktemp("runs")
    make_run(tmp_path, "a0", [(10, 1.0, 0.0), (20, 2.0, 8.0)], algo__lr=0.1)
    make_run(tmp_path, "a1", [(10, 2.0, 2.0), (40, 4.0, 4.0)], algo__lr=0.1, seed=1)
    make_run(tmp_path, "b0", [(15, 1.0, 3.0), (45, 2.0, 7.0)], algo__lr=0.2)
    make_run(tmp_path, "c0", [(15, 1.0, 3.0)], env__name="Lander")
    comparisons = [compare(group, 5.0) for group in grouped(Run(path) for path in tmp_path.glob("*/*/*"))]
    return make_figure(comparisons)


def lines(plot, width):
    """Return the points of the lines with this width."""
    return [line.get_xydata().tolist() for line in plot.get_lines() if line.get_linewidth() == width]


def test_a_row_for_each_environment_over_steps_and_seconds(figure):
    assert [plot.get_ylabel().split("\n")[0] for plot in figure.axes] == ["Lander", "", "Pole", ""]
    assert [plot.get_xlabel() for plot in figure.axes] == ["environment steps", "wall-clock seconds"] * 2
    assert all(plot.get_xlim()[0] == 0 for plot in figure.axes)


def test_lines_are_joint_curves_thin_from_where_a_finished_run_is_held(figure):
    *_, steps, seconds = figure.axes
    assert lines(steps, 1.8) == [[[10, 1], [20, 5]], [[15, 3], [45, 7]]]
    assert lines(steps, 0.9) == [[[20, 5], [40, 6]], [[45, 7]]]
    assert lines(seconds, 1.8)[0] == [[2, 5]]
    assert lines(seconds, 0.9)[0] == [[2, 5], [4, 6]]
    assert sorted(lines(steps, 0.7)) == [[[10, 0], [20, 8]], [[10, 2], [40, 4]], [[15, 3], [45, 7]]]
    curves = [line for line in steps.get_lines() if line.get_linewidth() != 0.8]
    assert {line.get_drawstyle() for line in curves} == {"steps-post"}


def test_a_band_only_for_several_seeds(figure):
    _, _, steps, _ = figure.axes
    (band,) = steps.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (np.min(heights), np.max(heights)) == (0, 8)


def test_the_threshold_is_a_line(figure):
    _, _, steps, _ = figure.axes
    (level,) = [line.get_ydata() for line in steps.get_lines() if line.get_linewidth() == 0.8]
    assert list(level) == [5.0, 5.0]


def test_one_legend_by_label(figure):
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["algo=dqn mode=single (1 seed)", "algo.lr=0.1 (2 seeds)", "algo.lr=0.2 (1 seed)"]
    colors = [handle.get_color() for handle in legend.legend_handles]
    assert len(set(colors)) == 3
    *_, steps, _ = figure.axes
    assert [line.get_color() for line in steps.get_lines() if line.get_linewidth() == 1.8] == colors[1:]
