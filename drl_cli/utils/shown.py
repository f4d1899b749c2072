"""Print texts that may come from a file, such as a run's name, so that they can't control the terminal."""

import builtins
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


def print(*texts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print as Python's `print` does, but with control characters as escapes. Every module of drl-cli uses this one."""
    builtins.print(*map(shown, texts), sep=sep, end=end, file=file, flush=flush)
