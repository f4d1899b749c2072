"""Text tables: drawn by rich on a terminal, plain aligned lines elsewhere."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TextIO

from drl_cli.metrics.status import number as number
from drl_cli.utils.run_clock import UNIT_TEXTS, Unit
from drl_cli.utils.shown import cell, score_text

NONE = "-"
"""Text for a missing value."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO, left: Sequence[str] = ()) -> str:
    """Return a table as text for `out`. Columns named in `left` are aligned left, other columns right."""
    head, rows = [*map(cell, head)], [[*map(cell, row)] for row in rows]
    if out.isatty():
        return _rich(head, rows, out, left)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    signs = ["<" if name in left else ">" for name in head]
    return "\n".join(
        "  ".join(f"{text:{sign}{width}}" for text, sign, width in zip(line, signs, widths, strict=True)).rstrip()
        for line in (head, *rows)
    )


def steps(value: float | None, unit: Unit, head: Unit | None = "env_steps") -> str:
    """Format a position of a run's clock for a column that is headed by the unit `head`; name another unit."""
    text = number(value)
    return text if unit == head or text == NONE else f"{text} {UNIT_TEXTS[unit]}"


def between(value: float | None, low: float, high: float, form: str | None = None) -> str:
    """Format a return, or a value by `form`, and its interval `[low, high]`. Leave an interval of NaN out."""
    show = score_text if form is None else partial(number, form=form)
    ends = "" if math.isnan(low) else f" [{show(low)}, {show(high)}]"
    return show(value) + ends


def _rich(head: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO, left: Sequence[str]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, color_system=None)  # without styles, whose escape sequences `print` would show
    columns = list(zip(head, *rows, strict=True))
    is_one_word = [all(" " not in text for text in texts) for _, *texts in columns]
    widths = [
        max(len(part) for text in column for part in ([text] if one_word else text.split()))
        for column, one_word in zip(columns, is_one_word, strict=True)
    ]
    fits = sum(widths) + 2 * len(head) <= console.width
    drawn = Table(box=None, padding=(0, 2, 0, 0))
    for name, one_word in zip(head, is_one_word, strict=True):
        drawn.add_column(
            Text(name), justify="left" if name in left else "right", overflow="fold", no_wrap=one_word and fits
        )
    for row in rows:
        drawn.add_row(*map(Text, row))
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().strip("\n")
