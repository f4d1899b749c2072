"""Lines of text about a run, for terminals without a panel. ASCII only."""

import math
from collections.abc import Callable, Mapping

from drl_cli.metrics.status import Status
from drl_cli.utils.shown import score_text

NO_EPISODE = "no episode has ended yet"
LINE_LOSSES = 3
"""The number of losses in a line about a run without workers."""


def clock(seconds: float | None) -> str:
    """Return a duration such as `0:03:58`, or `-` if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    total = max(0, int(seconds))
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def number(value: float | None, form: str = ",.0f") -> str:
    """Return a number in the format `form`, or `-` if it is unknown."""
    return "-" if value is None else format(value, form)


def ratio_text(status: Status) -> str:
    """Return the replay ratio and its target, such as `0.483 of 0.5`."""
    asked = "" if status.ratio_asked is None else f" of {status.ratio_asked:g}"
    return f"{number(status.ratio, '.3g')}{asked}"


def reanalyzed_text(status: Status) -> str:
    """Return the steps that were searched again per transition, with the target; empty without re-analysers."""
    if status.reanalyzed_asked is None:
        return ""
    return f"re-analysed {number(status.reanalyzed, '.3g')} of {status.reanalyzed_asked:g}"


def left_text(status: Status) -> str:
    """Return the time left. It is an upper limit if the run may end earlier, at a target return."""
    at_most = "at most " if status.goal is not None and status.left_s is not None else ""
    return f"left {at_most}{clock(status.left_s)}"


def report_line(status: Status) -> str:
    """Return a line about training, without unknown values. Successive lines have aligned columns."""
    is_offline = status.total_updates is not None
    rates = "" if is_offline else f"{_cell('{} env/s', status.env_steps_per_s)}  "
    rates += _cell("{} updates/s", status.opt_steps_per_s)
    if status.awaits:
        return f"{_begin(status, status.position)}  waiting for {status.awaited}  {rates}".rstrip()
    mean, length = status.train_return, status.train_length
    episodes = f"{_cell('train return {}', mean, 9, score_text)}  {_cell('length {}', length)}"
    if mean is None:
        episodes = f"{NO_EPISODE:<{len(episodes)}}"
    if is_offline:
        episodes = "  ".join(f"{name} {value:.3g}" for name, value in [*status.losses.items()][:LINE_LOSSES])
    ratio = "" if status.ratio is None else f"ratio {ratio_text(status)}"
    left = "" if status.state == "ending" or status.left_s is None else left_text(status)
    columns = [episodes, rates, ratio, _cell("lag {}", status.policy_lag, 4), left]
    columns[3:3] = [text for text in (reanalyzed_text(status),) if text]
    return "  ".join([_begin(status, status.position), *columns]).rstrip()


def evaluation_line(status: Status, statistics: Mapping[str, float], position: int, is_best: bool) -> str:
    """Return a line about an evaluation that is already in `status`. Only the mean must be in `statistics`."""
    best = "" if status.best is None else f"  best {score_text(status.best[1])}"
    target = "" if status.goal is None else f"  target {status.goal:g}"
    spread = ""
    if "std" in statistics:
        low_high = f"[{score_text(statistics['min'])}, {score_text(statistics['max'])}]"
        spread = f"  +- {score_text(statistics['std'])} {low_high} over {statistics['episodes']:.0f} episodes"
    if "normalized_score" in statistics:
        spread += f"  score {score_text(statistics['normalized_score'])}"
    mark = "  (new best)" if is_best else ""
    newest = max(status.position, position)  # training has gone on during the evaluation
    at = f"  at {step_text(status)} {position:,}" if position < newest else ""
    return f"{_begin(status, newest)}  eval  return {score_text(statistics['mean']):>9}{spread}{best}{target}{at}{mark}"


def step_text(status: Status) -> str:
    """Return what a number of the run's clock counts."""
    return "step" if status.total_updates is None else "update"


def _begin(status: Status, position: int) -> str:
    share = min(1.0, position / max(1, status.total))
    return f"{clock(status.wall_s):>9}  {share:>6.1%}  {step_text(status)} {position:>{len(f'{status.total:,}')},}"


def _cell(text: str, value: float | None, width: int = 6, show: Callable[[float | None], str] = number) -> str:
    """Return the text with the value in place of `{}`, or as many spaces if the value is unknown."""
    cell = text.format(f"{show(value):>{width}}")
    return " " * len(cell) if value is None else cell
