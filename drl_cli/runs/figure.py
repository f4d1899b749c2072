"""Figure of a comparison: returns over environment steps and over wall-clock seconds, one row per environment."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from drl_cli.runs.comparison import Comparison
from drl_cli.runs.curve import Axis, JointCurve

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Colours that colour-blind readers can tell apart (Okabe and Ito 2008)."""
STYLES = ("-", "--", ":", "-.")  # labels 9 to 16 reuse the colours of labels 1 to 8, with dashed lines
X_LABELS: dict[Axis, str] = {"env_steps": "environment steps", "wall_s": "wall-clock seconds"}


def make_figure(comparisons: Sequence[Comparison]) -> Figure:
    """Return the figure with two plots for each environment.

    Lines show the interquartile mean over seeds, bands show its 95% interval, and faint lines show single runs. A line
    is thin where the last return of a finished run is repeated. A label has the same colour in all rows.
    """
    envs = list(dict.fromkeys(one.group.env for one in comparisons))
    labels = list(dict.fromkeys(one.group.label for one in comparisons))
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 3.6 * len(envs) + 0.25 * len(comparisons)), layout="constrained")
        grid = figure.subplots(len(envs), 2, sharey="row", squeeze=False)
        for env, row in zip(envs, grid, strict=True):
            shown = {labels.index(one.group.label): one for one in comparisons if one.group.env == env}
            for axis, plot in zip(X_LABELS, row, strict=True):
                _draw_axis(plot, shown, axis)
            row[0].set_ylabel(f"{env}\nevaluation return")
        lines = [
            Line2D([], [], **_style(i), lw=1.8, label=_legend(label, comparisons)) for i, label in enumerate(labels)
        ]
        figure.legend(handles=lines, loc="outside lower center", ncols=min(3, len(lines)), frameon=False)
    return figure


def _draw_axis(plot: Any, comparisons: Mapping[int, Comparison], axis: Axis) -> None:
    for i, one in comparisons.items():
        for run in one.group.runs:
            plot.plot(run.curve.x(axis), run.curve.returns, **_style(i), alpha=0.2, lw=0.7, drawstyle="steps-post")
        _draw_curve(plot, one.curves[axis], _style(i))
    for threshold in sorted({one.threshold for one in comparisons.values() if one.threshold is not None}):
        plot.axhline(threshold, color="0.5", lw=0.8, ls=(0, (4, 4)))
    plot.set_xlabel(X_LABELS[axis])
    plot.set_xlim(left=0)
    plot.xaxis.set_major_formatter(EngFormatter(sep=""))
    plot.grid(alpha=0.2)


def _draw_curve(plot: Any, curve: JointCurve, style: Mapping[str, Any]) -> None:
    held = curve.x >= curve.held_from
    until = np.searchsorted(curve.x, curve.held_from, side="left") + 1
    plot.plot(curve.x[:until], curve.iqm[:until], **style, lw=1.8, drawstyle="steps-post")
    plot.plot(curve.x[held], curve.iqm[held], **style, lw=0.9, drawstyle="steps-post")
    if np.isfinite(curve.low).any():
        plot.fill_between(curve.x, curve.low, curve.high, color=style["color"], alpha=0.15, lw=0, step="post")


def _style(i: int) -> dict[str, Any]:
    return {"color": COLORS[i % len(COLORS)], "ls": STYLES[i // len(COLORS) % len(STYLES)]}


def _legend(label: str, comparisons: Sequence[Comparison]) -> str:
    """Return the label with the number of its seeds, which may differ between environments."""
    nums = sorted({len(one.group.runs) for one in comparisons if one.group.label == label})
    return f"{label} ({' or '.join(map(str, nums))} seed{'s' * (nums != [1])})"
