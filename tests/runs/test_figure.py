import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from run_folders import make_run

from drl_cli.run_folder.saved_run import Run
from drl_cli.runs.comparison import compare
from drl_cli.runs.figure import make_figure
from drl_cli.runs.groups import grouped


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
    return [line.get_xydata().tolist() for line in plot.get_lines() if line.get_linewidth() == width]


def test_a_row_for_each_environment_over_steps_and_seconds(figure):
    assert [plot.get_ylabel().split("\n")[0] for plot in figure.axes] == ["Lander", "", "Pole", ""]
    assert [plot.get_xlabel() for plot in figure.axes] == ["environment steps", "wall-clock time [s]"] * 2
    for plot, first, last in zip(figure.axes[2:], (10, 1), (45, 4), strict=True):  # no point lies on an edge
        margin = 0.02 * (last - first)
        assert plot.get_xlim() == pytest.approx((first - margin, last + margin))


def test_lines_are_joint_curves_thin_from_where_a_finished_run_is_held(figure):
    *_, steps, seconds = figure.axes
    assert lines(steps, 1.8) == [[[10, 1], [20, 5]], [[15, 3], [45, 7]]]
    assert (lines(steps, 0.9), lines(seconds, 1.8)[0]) == ([[[20, 5], [40, 6]], [[45, 7]]], [[2, 5]])
    assert lines(seconds, 0.9)[0] == [[2, 5], [4, 6]]
    assert sorted(lines(steps, 0.7)) == [[[10, 0], [20, 8]], [[10, 2], [40, 4]], [[15, 3], [45, 7]]]
    curves = [line for line in steps.get_lines() if line.get_linewidth() != 0.8]
    assert {line.get_drawstyle() for line in curves} == {"steps-post"}


def test_a_band_only_for_several_seeds(figure):
    _, _, steps, _ = figure.axes
    (band,) = steps.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (np.min(heights), np.max(heights)) == (0, 8)


def test_named_lines_are_in_every_plot(tmp_path):
    make_run(tmp_path, "a0", [(10, 1.0, 3.0), (20, 2.0, 8.0)])
    (group,) = grouped(Run(path) for path in tmp_path.glob("*/*/*"))
    for plot in make_figure([compare(group, None)], {"SAC": 6.0, "CrossQ": 7.0}).axes:
        assert [list(line.get_ydata()) for line in plot.get_lines() if line.get_linewidth() == 0.6] == [[6, 6], [7, 7]]
        assert [(text.get_text(), text.xy) for text in plot.texts] == [("SAC", (0, 6.0)), ("CrossQ", (0, 7.0))]
        assert {(text.get_fontsize(), text.xyann, text.get_color()) for text in plot.texts} == {(7, (2, 1), "0.3")}


def test_one_legend_by_label(figure):
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:3] == ["algo=dqn mode=single (1 seed)", "algo.lr=0.1 (2 seeds)", "algo.lr=0.2 (1 seed)"]
    assert texts[3:] == ["95% interval of the mean over seeds", "single runs", "goal 5"]
    colors = [handle.get_color() for handle in legend.legend_handles[:3]]
    assert len(set(colors)) == 3
    *_, steps, _ = figure.axes
    assert [line.get_color() for line in steps.get_lines() if line.get_linewidth() == 1.8] == colors[1:]


@pytest.fixture
def drawn(tmp_path):
    def draw(smooth=1):
        comparisons = [compare(group, None, smooth) for group in grouped(Run(path) for path in tmp_path.glob("*/*/*"))]
        figure = make_figure(comparisons)
        FigureCanvasAgg(figure).draw()
        return figure, comparisons

    return draw


def nine_groups(tmp_path, **options):
    """Nine groups of two seeds, and a last one with a single evaluation."""
    for i in range(9):
        evals = [(1000 * (1 + step), 600.0 * (1 + step), i + step) for step in range(5 if i < 8 else 1)]
        for seed in range(2 if i < 8 else 1):
            make_run(tmp_path, f"r{i}{seed}", evals, seed=seed, algo__lr=(i + 1) / 1000, **options)


@pytest.mark.parametrize("width", [1, 40, 300])
def test_a_legend_of_many_groups_is_never_cut(tmp_path, drawn, width):
    nine_groups(tmp_path)
    make_run(tmp_path, "long", [(1000, 1.0, 1.0)], algo__lr=0.5, env__wrappers=["x" * width])
    figure, _ = drawn()
    (legend,) = figure.legends
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 <= box.x1 <= page.x1
    assert page.y0 <= box.y0 <= box.y1 <= page.y1
    plots = [plot.get_window_extent() for plot in figure.axes]
    assert all(plot.y0 > box.y1 and plot.height > 0.4 * page.height for plot in plots) or width == 300


def test_what_all_runs_share_is_in_the_title_and_not_in_the_labels(tmp_path, drawn):
    nine_groups(tmp_path)
    figure, _ = drawn()
    assert figure.get_suptitle() == "Pole   algo=dqn mode=single   interquartile mean over seeds"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[0] == "algo.lr=0.001 (2 seeds)"
    assert texts[-2:] == ["95% interval of the mean over seeds", "single runs"]


def marked(plot):
    return [line for line in plot.get_lines() if line.get_marker() != "None"]


def test_a_group_with_one_evaluation_has_a_marker(tmp_path, drawn):
    make_run(tmp_path, "a", [(10, 1.0, 0.0), (20, 2.0, 4.0)])
    make_run(tmp_path, "b", [(10, 1.0, 8.0)], algo__lr=0.1)
    figure, _ = drawn()
    for plot in figure.axes:
        assert [line.get_ydata().tolist() for line in marked(plot)] == [[8.0]]
    handles = figure.legends[0].legend_handles
    assert [handle.get_marker() != "None" for handle in handles[:2]] == [False, True]


@pytest.mark.parametrize("num_evals", [1, 30])
def test_twenty_groups_differ_in_the_pair_of_colour_and_marker(tmp_path, drawn, num_evals):
    for i in range(20):
        evals = [(1000 * (1 + step), 1.0 + step, i + step) for step in range(num_evals)]
        make_run(tmp_path, f"r{i:02}", evals, algo__lr=(i + 1) / 1000)
    figure, _ = drawn()
    looks = [(handle.get_color(), handle.get_marker()) for handle in figure.legends[0].legend_handles]
    assert len(set(looks)) == 20
    for plot in figure.axes:
        found = marked(plot)
        assert [(line.get_color(), line.get_marker()) for line in found] == looks
        for line in found:
            first, every = line.get_markevery()
            assert 0 <= first < every <= num_evals
            assert num_evals == 1 or 8 <= len(range(first, num_evals, every)) <= 12


def test_a_group_of_many_seeds_always_has_its_mean_line(tmp_path, drawn):
    for seed in range(20):
        first = 100 if seed else 9000  # one run's first evaluation is later than the end of an unfinished run
        evals = [(first, first / 10, 1.0), (first + 100, first / 10 + 1, 2.0)]
        make_run(tmp_path, f"s{seed}", evals, seed=seed, status="failed" if seed == 3 else "done")
    figure, _ = drawn()
    for plot in figure.axes:
        (mean, *_) = lines(plot, 1.8)
        assert (len(mean), mean[0][1]) == (1, 2.0)


def test_lines_are_smoothed_on_request_but_not_the_final_return(tmp_path, drawn):
    make_run(tmp_path, "a", [(10, 1.0, 0.0), (20, 2.0, 4.0), (30, 3.0, 8.0)])
    figure, (one,) = drawn(smooth=2)
    assert (lines(figure.axes[0], 1.8), one.final.value) == ([[[10, 0], [20, 2], [30, 6]]], 8.0)


def test_updates_have_an_axis_of_their_own(tmp_path, drawn):
    make_run(tmp_path, "a", [(1000, 1.0, 1.0), (2000, 2.0, 8.0)])
    make_run(tmp_path, "b", [(10, 1.0, 3.0), (20, 2.0, 7.0)], mode="offline")
    make_run(tmp_path, "c", [(3000, 1.0, 3.0)], env__name="Lander")
    figure, _ = drawn()
    labels = [plot.get_xlabel() for plot in figure.axes[3:]]
    assert labels == ["environment steps", "updates", "wall-clock time [s]"]
    assert [plot.get_visible() for plot in figure.axes] == [True, False, True, True, True, True]  # first: Lander
    ends = [{max(line.get_xdata()) for line in plot.get_lines()} for plot in figure.axes[3:]]
    assert ends == [{2000.0}, {20.0}, {2.0}]
