"""The panel: draws a status with rich, for drl-train and drl-watch."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drl_cli.metrics.advice import bottleneck
from drl_cli.metrics.status import Status
from drl_cli.metrics.text import NO_EPISODE, clock, left_text, number, ratio_text, reanalyzed_text, step_text
from drl_cli.utils.shown import score_text, shown

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
    """Return the processors and the memory that the roles of a host use, and the number of its workers."""
    workers = int(roles.get("worker", {}).get("processes", 0))
    cores, memory = (sum(role.get(name, 0.0) for role in roles.values()) for name in ("cores", "rss_mb"))
    return f"{host} {workers} worker{'s' * (workers != 1)} {cores:.2f} cores {_size(memory)}"


def _size(mb: float) -> str:
    return f"{mb / 1024:.1f} GB" if mb >= 1000 else f"{mb:.0f} MB"
