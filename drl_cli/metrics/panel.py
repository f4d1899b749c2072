"""Live: a panel at the bottom of the terminal, drawn with rich. Other lines appear above it. It has advice, too."""

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import rich.live
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drl_cli.metrics.display import Display
from drl_cli.metrics.status import NO_EPISODE, Status, clock, left_text, number, ratio_text, reanalyzed_text, step_text
from drl_cli.utils.shown import score_text, shown

WAITS = 0.2
"""If the workers wait for more than this fraction of their time, the trainer is the bottleneck, and vice versa."""
FREE, FULL = 0.85, 0.95
"""If the machine load is below FREE, some processors are idle. If it is above FULL, no processor is idle."""
OWN = 0.7
"""If a run uses less than this fraction of a fully loaded machine, other programs slow it down."""
CHANGES = "this changes what is learned"


def bottleneck(status: Status) -> str:
    """Return one line of advice, or an empty text if too little is known."""
    worker, trainer = status.worker_time.get("waiting"), status.trainer_time.get("waiting")
    if status.mode == "offline":
        return "" if status.awaits or status.compiles else "updates take all the time: trainer.compile=true"
    if status.awaits or worker is None:
        return ""
    if trainer is None:
        return "the trainer: no update has ended lately" if status.opt_steps else "the first update is still to come"
    load = status.cpu_percent
    if load is not None and load > 100 * FULL and (own := _own_cores(status)) < OWN * status.cpus:
        return f"other programs: all {status.cpus} processors are busy, and this run has {own:.1f} of them"
    if status.mode != "async":
        return _in_turns(status)
    if worker > WAITS and trainer > WAITS:
        return (
            f"both sides wait for each other (workers {worker:.0%}, trainer {trainer:.0%}): raise worker.block_rows "
            f"for fewer calls; policies are then older, {CHANGES} a little"
        )
    if worker > WAITS:
        return f"the trainer: workers wait {worker:.0%} of their time. {_faster_updates(status)}"
    if trainer > WAITS:
        return f"the workers: the trainer waits {trainer:.0%} of its time. {_faster_steps(status)}"
    return "both sides are busy: only more processors make it faster"


def _in_turns(status: Status) -> str:
    collects = 1.0 - status.worker_time["waiting"]
    if collects < 0.5:
        return f"updates take {1 - collects:.0%} of the time, in turns with collecting. {_faster_updates(status)}"
    workers = "" if status.mode == "single" else f" {_faster_steps(status)}."
    return (
        f"collecting takes {collects:.0%} of the time, in turns with updates.{workers} mode=async does both at once: "
        f"policies are then older, {CHANGES}"
    )


def _faster_updates(status: Status) -> str:
    share = status.trainer_time
    if share.get("batch", 0.0) > share.get("update", 0.0):
        return "It waits for its batches: raise replay.shards or trainer.updates_per_call"
    if status.is_on_policy:
        return f"Fewer updates: lower algo.epochs ({CHANGES})"
    ways = [] if status.compiles else ["trainer.compile=true makes updates faster"]
    if status.workers > 1 and not has_free_cores(status) and status.mode == "async":
        ways.insert(0, f"worker.num={status.workers - 1} leaves it more of the processors")
    if status.ratio_asked is not None:
        fewer = f"orchestrator.sample_insert_ratio below {status.ratio_asked:g} makes fewer updates"
        ways.append(f"{fewer} ({CHANGES})")
    return "; ".join(ways)


def _faster_steps(status: Status) -> str:
    share = status.worker_time
    rollouts = f" (shorter rollouts from more episodes: {CHANGES})" if status.is_on_policy else ""
    if share.get("policy", 0.0) > share.get("environment", 0.0):
        what = f"They spend it on the policy: raise worker.envs, which act together{rollouts}"
    elif has_free_cores(status):
        what = f"Raise worker.num above {status.workers}: not all of the {status.cpus} processors are busy{rollouts}"
    else:
        what = f"All {status.cpus} processors are busy: env.backend=envpool, or ray.address=... for more machines"
    if status.is_on_policy or status.ratio_asked is None:
        return what
    return f"{what}; or raise orchestrator.sample_insert_ratio: more updates of the same steps ({CHANGES})"


def has_free_cores(status: Status) -> bool:
    """Return whether there are idle processors for this run; False if the load is unknown."""
    load = status.cpu_percent
    return status.cpus > 1 and load is not None and load < 100 * FREE and _own_cores(status) < FREE * status.cpus


def _own_cores(status: Status) -> float:
    return sum(role.get("cores", 0.0) for role in status.roles.values())


COLORS = dict.fromkeys(("failed", "diverged", "killed"), "red") | dict.fromkeys(("interrupted", "paused"), "yellow")
COLORS["done"] = "green"
MAX_LOSSES = 8
MAX_BARS = 24
BARS, ASCII_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", "_.-=+*#@"


LESS_IMPORTANT = ("nodes", "processors", "memory", "losses", "speed", "trainer", "workers", "training", "evaluation")
"""The rows that a small terminal does not show; the first of them is left out first."""


def panel(status: Status, moment: float) -> RenderableType:
    """Return the panel of a status at the time `moment` [s since the epoch], as high as the terminal allows."""
    return Fitting([_panel(status, moment, LESS_IMPORTANT[:num]) for num in range(len(LESS_IMPORTANT) + 1)])


class Fitting:
    """The first of several versions that fits into the height of the terminal, or the last version."""

    def __init__(self, versions: Sequence[RenderableType]) -> None:
        self.versions = versions

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        *larger, last = self.versions
        height = options.size.height
        yield next((each for each in larger if len(console.render_lines(each, options)) <= height), last)


def _panel(status: Status, moment: float, left_out: Sequence[str]) -> RenderableType:
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1)
    for name, value in _rows(status):
        if name not in left_out:
            rows.add_row(name, value)
    parts: list[RenderableType] = [_head(status, status.age_s(moment)), rows]
    if status.note:
        parts.append(_text(status.note, style="bold yellow"))
    color = COLORS.get(status.state, "cyan")
    state = _text(status.state, style=color)
    return Panel(Group(*parts), title=_text(status.title), subtitle=state, title_align="left", subtitle_align="right")


def _text(text: str, style: str = "") -> Text:
    """Return a text without markup, with control characters as escapes."""
    return Text(shown(text), style)


class Items:
    """Short texts, as many per line as fit, followed by a bar chart of `values`."""

    def __init__(self, items: Sequence[str], values: Sequence[float] = ()) -> None:
        self.items, self.values = items, values[-MAX_BARS:]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bars = [sparkline(self.values, ASCII_BARS if options.ascii_only else BARS)] if len(self.values) > 1 else []
        line = ""
        for item in (*self.items, *bars):
            longer = f"{line}   {item}" if line else item
            if line and len(longer) > options.max_width:
                yield _text(line)
                longer = item
            line = longer
        yield _text(line or "-")


def sparkline(values: Sequence[float], levels: str) -> str:
    """Return one character of `levels` for each value; the first is for the lowest value, the last for the highest."""
    low, high = min(values), max(values)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round(scale * (value - low))] for value in values)


def _head(status: Status, wall_s: float) -> RenderableType:
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    is_offline = status.total_updates is not None
    unit, updates = ("updates", "") if is_offline else ("env steps", f"   {status.opt_steps:,} updates")
    steps = f"{status.share:6.1%}   {status.position:,} / {status.total:,} {unit}"
    bar.add_row(ProgressBar(total=1.0, completed=status.share), steps)
    left = "" if status.awaits or status.is_over else f"   {left_text(status)}"
    return Group(bar, _text(f"elapsed {clock(wall_s)}{left}{updates}"))


def _rows(status: Status) -> Iterator[tuple[str, RenderableType]]:
    """Yield the name and content of each row. Unknown values are left out."""
    if status.awaits:
        yield "waiting for", _text(status.awaited, style="bold")
    if not status.position:
        return
    is_offline = status.total_updates is not None
    training = [NO_EPISODE]
    if status.train_return is not None:
        last = f"mean of the last {status.train_episodes} of {status.episodes:,} episodes"
        training = [f"return {score_text(status.train_return)}", f"length {number(status.train_length)}", last]
    if not is_offline:
        yield "training", Items(training)
    at = step_text(status)
    newest = [f"return {score_text(mean)} at {at} {position:,}" for position, mean in status.scores[-1:]]
    evaluation = newest or ["none yet"]
    if status.best is not None and status.scores:
        evaluation.append(f"best {score_text(status.best[1])} at {status.best[0]:,}")
    target = [] if status.goal is None else [f"target {status.goal:g}"]
    yield "evaluation", Items([*evaluation, *target], [mean for _, mean in status.scores])
    if status.doubt:
        yield "learning", _text(status.doubt, style="bold")
    rates = [f"{number(status.opt_steps_per_s)} updates/s"]
    if not is_offline:
        rates = [f"{number(status.env_steps_per_s)} env/s", *rates, f"ratio {ratio_text(status)}"]
    lag = [] if status.policy_lag is None else [f"policy lag {status.policy_lag:.0f} updates"]
    again = [text] if (text := reanalyzed_text(status)) else []
    yield "speed", Items([*rates, *again, *lag])
    sides = {"workers": {} if is_offline else status.worker_time, "trainer": status.trainer_time}
    for side, shares in sides.items():
        yield side, Items([f"{name} {share:.0%}" for name, share in shares.items()])
    losses = [f"{name} {value:.3g}" for name, value in status.losses.items()]
    more = [f"and {len(losses) - MAX_LOSSES} more"] if len(losses) > MAX_LOSSES else []
    yield "losses", Items([*losses[:MAX_LOSSES], *more])
    counts = {name: int(role.get("processes", 1)) for name, role in status.roles.items()}
    roles = [(f"{name} x{counts[name]}" if counts[name] > 1 else name, role) for name, role in status.roles.items()]
    replay = f"replay holds {status.replay_size:,} of {status.replay_capacity:,}"
    yield "memory", Items([*(f"{name} {_size(role['rss_mb'])}" for name, role in roles), replay])
    busy = [] if status.cpu_percent is None else [f"{status.cpu_percent:.0f}% of {status.cpus} busy"]
    yield "processors", Items([*(f"{name} {role['cores']:.2f}" for name, role in roles if "cores" in role), *busy])
    if len(status.nodes) > 1:
        yield "nodes", Items([_node_text(host, roles) for host, roles in status.nodes.items()])
    if advice := bottleneck(status):
        yield "bottleneck", _text(advice, style="bold")


def _node_text(host: str, roles: Mapping[str, Mapping[str, float]]) -> str:
    workers = int(roles.get("worker", {}).get("processes", 0))
    cores, memory = (sum(role.get(name, 0.0) for role in roles.values()) for name in ("cores", "rss_mb"))
    return f"{host} {workers} worker{'s' * (workers != 1)} {cores:.2f} cores {_size(memory)}"


def _size(mb: float) -> str:
    return f"{mb / 1024:.1f} GB" if mb >= 1000 else f"{mb:.0f} MB"


class AsciiConsole(Console):
    """Draws with ASCII characters. Python itself writes UTF-8 even if the locale is C."""

    @property
    def encoding(self) -> str:
        return "ascii"


def is_ascii(environment: Mapping[str, str]) -> bool:
    """Return whether the variables of the locale ask for ASCII."""
    values = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, values), None) in ("C", "POSIX")


class Live(Display):
    """Draws the newest status at every tick. The last panel stays on the terminal after the run."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out, 0.0)
        self.status = Status(started=time.time())
        self.console = (AsciiConsole if is_ascii(os.environ) else Console)(file=out)
        self.live = rich.live.Live(
            console=self.console,
            auto_refresh=False,
            get_renderable=lambda: panel(self.status, time.time()),
            redirect_stderr=sys.stderr.isatty(),  # if stderr is a file, warnings must go to this file
        )
        self.width = self.console.width  # at the last panel
        self.live.start()

    def line(self, text: str) -> None:
        self._fit()
        self.console.print(shown(text), markup=False, highlight=False, soft_wrap=True)  # a command has to stay one line

    def awaits(self, status: Status) -> None:
        self.tick(status)

    def report(self, status: Status) -> None:
        self.status = status

    def evaluation(self, status: Status, statistics: Mapping[str, float], position: int, is_best: bool) -> None:
        self.status = status

    def tick(self, status: Status) -> None:
        self.status = status
        self._fit()
        self.live.refresh()

    def _fit(self) -> None:
        """If the terminal is narrower than at the last panel, erase all rows over which it has wrapped the panel."""
        width, before = self.console.width, self.width
        self.width = width
        if height := self.live._live_render.last_render_height if width < before else 0:
            rows = min(height * math.ceil(before / width), self.console.height)
            self.console.file.write("\r" + f"\x1b[{rows - 1}A" * (rows > 1) + "\x1b[J")  # up, erase the rest
            self.live._live_render._shape = None  # nothing is left to erase

    def end(self, status: Status, summary: Mapping[str, Any], text: str) -> None:
        self.line(text)

    def close(self) -> None:
        self._fit()
        self.live.transient = not self.status.title  # remove the panel of a run that did not start
        self.live.stop()
