"""Print texts that may come from a file, so that they can't control the terminal, and format returns."""

import builtins
import math
import re
from typing import TextIO

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and newline, characters that change the direction of text, and lone surrogates."""


def shown(text: object) -> str:
    r"""Return a text with its control characters as escapes, such as \x1b. A text without any stays the same."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def cell(text: object) -> str:
    r"""Return a text for one cell of a table: `shown`, with newlines as \n."""
    return shown(text).replace("\n", r"\n")


def score_text(value: float | None) -> str:
    """Format a return: one decimal, or three significant digits if one decimal is wrong by more than 0.5 percent.

    Rewards may be of any size: 0.0312 would otherwise read as 0.0, and 0.96 as 1.0. None, NaN and infinity become "-".
    """
    if value is None or not math.isfinite(value):
        return "-"
    text = f"{value:.1f}"
    is_close = math.isclose(float(text), value, rel_tol=0.005, abs_tol=1e-9)  # 1e-9: a rounding error of a spread
    return text if is_close else f"{value:.3g}"


def print(*texts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print as Python's `print` does, but with control characters as escapes. Every module of drl-cli uses this one."""
    builtins.print(*map(shown, texts), sep=sep, end=end, file=file, flush=flush)
