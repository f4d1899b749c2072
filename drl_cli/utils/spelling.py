"""Find the known words that are nearest to a misspelled word."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` known words that are similar to `word`, the best first.

    Upper and lower case count as equal. If no word is similar, return the words with the same letters in another order.
    """
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), list(lower), count, 0.6)
    found = found or [name for name in lower if sorted(name) == sorted(word.lower())]
    return [lower[name] for name in found]


def did_you_mean(word: str, known: Iterable[str], count: int = 1, quote: str = "") -> str:
    """Return ' Did you mean X, Y?' with the nearest known words, or '' if no known word is similar."""
    found = nearest(word, known, count)
    return f" Did you mean {', '.join(quote + name + quote for name in found)}?" if found else ""
