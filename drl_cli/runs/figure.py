"""Figure of a comparison: returns over environment steps or updates, and over time; one row per environment."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from drl_cli.run_folder.evaluations import Axis
from drl_cli.runs.comparison import Comparison, JointCurve, units_of
from drl_cli.runs.groups import SHORT, override_text
from drl_cli.utils.run_clock import UNIT_TEXTS, Unit

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Colours that colour-blind readers can tell apart (Okabe and Ito 2008)."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers of labels. With 8 colours, 56 labels have different pairs of colour and marker."""
STYLES = ("-", "--", ":", "-.")  # labels 9 to 16 reuse the colours of labels 1 to 8, with dashed lines
NUM_MARKS, MARK_SIZE = 8, 6  # markers on a curve, and their size [points]
MARGIN = 0.02  # at both ends of the x axis, as a share of its length
UNITS = ((2 * 3600.0, 3600.0, "h"), (300.0, 60.0, "min"), (0.0, 1.0, "s"))
"""Units of time: minimum duration of the longest run [s], seconds per unit, name. The first match is used."""
GOAL = (0, (4, 4))
"""Line style of a goal: dashes of 4 points and gaps of 4 points."""
LINE_LENGTH, COLUMN_LENGTH = 110, 130
"""Maximum number of characters in a line of a label, and in a line of the legend with all its columns."""


def make_figure(comparisons: Sequence[Comparison], lines: Mapping[str, float] = MappingProxyType({})) -> Figure:
    """Return the figure with plots over environment steps, updates (of runs in mode=offline) and time.

    Every plot has a horizontal dashed line with its name for each return in `lines`.

    Lines show the interquartile mean over seeds, bands show its 95% interval, and faint lines show single runs. A line
    is thin where the last return of a finished run is repeated. A line with only one point is drawn as a marker, and
    all lines have markers if there are more labels than colours. A label has the same colour and marker in all rows.
    The title shows the values that all runs share.
    """
    envs = list(dict.fromkeys(one.group.env for one in comparisons))
    labels = list(dict.fromkeys(one.group.label for one in comparisons))
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        has_marks = len(labels) > len(COLORS)
        legend = [*_group_handles(labels, comparisons, has_marks), *_other_handles(comparisons)]
        columns = max(1, min(3, COLUMN_LENGTH // (8 + max(len(line) for each in legend for line in _lines(each)))))
        height = sum(len(_lines(each)) for each in legend) / columns
        units = units_of(comparisons)
        figure = Figure(figsize=(5 * (len(units) + 1), 3.6 * len(envs) + 0.6 + 0.2 * height), layout="constrained")
        grid = figure.subplots(len(envs), len(units) + 1, sharey="row", squeeze=False)
        for env, row in zip(envs, grid, strict=True):
            shown = {labels.index(one.group.label): one for one in comparisons if one.group.env == env}
            for unit, plot in zip([*units, None], row, strict=True):
                _draw_axis(plot, shown, unit, has_marks)
                _draw_lines(plot, lines)
            row[0].set_ylabel(f"{env}\nevaluation return")
        figure.suptitle("\n".join(textwrap.wrap(_title(envs, comparisons), LINE_LENGTH)), fontsize=10)
        figure.legend(handles=legend, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _draw_axis(plot: Any, comparisons: Mapping[int, Comparison], unit: Unit | None, has_marks: bool) -> None:
    """Draw the comparisons whose positions count this unit over their positions; without a unit, all over time."""
    axis: Axis = "env_steps" if unit else "wall_s"
    comparisons = {i: one for i, one in comparisons.items() if unit in (None, one.unit)}
    runs = [run for one in comparisons.values() for run in one.group.runs]
    if not runs:
        plot.set_visible(False)
        return
    first, last = (side(end(run.curve.x(axis)) for run in runs) for side, end in ((min, np.min), (max, np.max)))
    size, time_unit = (1.0, "") if unit else next((size, name) for least, size, name in UNITS if last >= least)
    for i, one in comparisons.items():
        for run in one.group.runs:
            x = run.curve.x(axis) / size
            plot.plot(x, run.curve.returns, **_style(i), alpha=0.2, lw=0.7, drawstyle="steps-post")
        _draw_curve(plot, one.curves[axis], size, i, has_marks)
    for threshold in _goals(comparisons.values()):
        plot.axhline(threshold, color="0.5", lw=0.8, ls=GOAL)
    if last > first:
        margin = MARGIN * (last - first)
        plot.set_xlim(left=(first - margin) / size, right=(last + margin) / size)
    plot.set_xlabel(UNIT_TEXTS[unit].replace("env", "environment") if unit else f"wall-clock time [{time_unit}]")
    if unit:
        plot.xaxis.set_major_formatter(EngFormatter(sep=""))
    plot.grid(alpha=0.2)


def _draw_lines(plot: Any, lines: Mapping[str, float]) -> None:
    for name, value in lines.items():
        plot.axhline(value, color="0.3", lw=0.6, ls=GOAL)
        place = {"xycoords": ("axes fraction", "data"), "xytext": (2, 1), "textcoords": "offset points"}
        plot.annotate(name, (0, value), **place, fontsize=7, color="0.3")


def _draw_curve(plot: Any, curve: JointCurve, size: float, i: int, has_marks: bool) -> None:
    """Draw the joint curve of label `i`. A unit of the x axis is `size` steps or seconds."""
    curve = replace(curve, x=curve.x / size, held_from=curve.held_from / size)
    held = curve.x >= curve.held_from
    until = np.searchsorted(curve.x, curve.held_from, side="left") + 1
    style, marker = _style(i), dict[str, Any]()
    if has_marks or len(curve.x) == 1:
        every = max(1, len(curve.x[:until]) // NUM_MARKS)
        marker = {**_marker(i), "markevery": (i % every, every), "zorder": 3}
    plot.plot(curve.x[:until], curve.iqm[:until], **style, **marker, lw=1.8, drawstyle="steps-post")
    plot.plot(curve.x[held], curve.iqm[held], **style, lw=0.9, drawstyle="steps-post")
    if np.isfinite(curve.low).any():
        plot.fill_between(curve.x, curve.low, curve.high, color=style["color"], alpha=0.15, lw=0, step="post")


def _style(i: int) -> dict[str, Any]:
    return {"color": COLORS[i % len(COLORS)], "ls": STYLES[i // len(COLORS) % len(STYLES)]}


def _marker(i: int) -> dict[str, Any]:
    return {"marker": MARKERS[i % len(MARKERS)], "ms": MARK_SIZE, "mec": "white", "mew": 0.4}


def _group_handles(labels: Sequence[str], comparisons: Sequence[Comparison], has_marks: bool) -> list[Line2D]:
    """Return a legend entry for each label, with the number of seeds. Omit the values that all groups share."""
    handles = []
    for i, label in enumerate(labels):
        found = [one for one in comparisons if one.group.label == label]
        shared = _shared(comparisons) if len(labels) > 1 else {}
        nums = sorted({len(one.runs) for one in found})
        text = (
            f"{found[0].group.label_without(shared) or label} ({' or '.join(map(str, nums))} seed{'s' * (nums != [1])})"
        )
        is_lone = all(len(one.curves["env_steps"].x) == 1 for one in found)
        marker = _marker(i) if has_marks or is_lone else {}
        handles.append(Line2D([], [], **_style(i), **marker, lw=1.8, label=textwrap.fill(text, LINE_LENGTH)))
    return handles


def _other_handles(comparisons: Sequence[Comparison]) -> list[Any]:  # Any: a line or a patch
    handles: list[Any] = []
    if any(np.isfinite(curve.low).any() for one in comparisons for curve in one.curves.values()):
        handles.append(Patch(color="0.5", alpha=0.3, lw=0, label="95% interval of the mean over seeds"))
    if any(len(one.group.runs) > 1 for one in comparisons):
        handles.append(Line2D([], [], color="0.5", alpha=0.5, lw=0.7, label="single runs"))
    if goals := _goals(comparisons):
        text = f"goal {', '.join(f'{goal:g}' for goal in goals)}"
        handles.append(Line2D([], [], color="0.5", lw=0.8, ls=GOAL, label=textwrap.fill(text, LINE_LENGTH)))
    return handles


def _goals(comparisons: Iterable[Comparison]) -> list[float]:
    return sorted({one.threshold for one in comparisons if one.threshold is not None})


def _shared(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the values that all runs share, of the algorithm, the mode and the keys in the labels."""
    configs = [run.config for one in comparisons for run in one.group.runs]
    keys = dict.fromkeys([SHORT["algo"], "mode", *(key for one in comparisons for key in one.group.values)])
    first = configs[0]
    return {key: first[key] for key in keys if key in first and all(each.get(key) == first[key] for each in configs)}


def _title(envs: Sequence[str], comparisons: Sequence[Comparison]) -> str:
    what = "interquartile mean over seeds" if any(len(one.runs) > 1 for one in comparisons) else "one seed"
    return "   ".join([*(envs if len(envs) == 1 else []), *filter(None, [override_text(_shared(comparisons))]), what])


def _lines(handle: Any) -> list[str]:  # Any: a line or a patch
    return str(handle.get_label()).splitlines()
