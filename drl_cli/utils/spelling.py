"""Find the known words that are nearest to a misspelled word."""

import difflib
import re
from collections.abc import Iterable

SHORT_WORD = 3
"""Most letters of a short word."""
SHORT_RATIO = 0.66
"""Similarity above which two short words of different length are similar."""


def nearest(word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to `count` known words whose similarity to `word` is at least `cutoff`, the best first.

    Upper and lower case count as equal. A known word with the same parts in another order, as a_b and b_a, comes before
    similar words. If no word is similar, return the words with the same letters in another order.
    """
    lower = {name.lower(): name for name in known}
    turned = [name for name in lower if _parts(name) == _parts(word.lower())]
    found = turned or difflib.get_close_matches(word.lower(), list(lower), count, cutoff)
    if len(word) <= SHORT_WORD:  # two equal letters of three make no similar word: a2c is not sac, but pp0 is ppo
        found = [name for name in found if _is_near(word.lower(), name)]
    found = found or [name for name in lower if sorted(name) == sorted(word.lower())]
    return [lower[name] for name in found]


def _parts(word: str) -> list[str]:
    return sorted(re.split("[_-]", word))


def _is_near(word: str, name: str) -> bool:
    """Return whether short words differ in one letter at one place, or have one letter more or less."""
    if len(word) == len(name):
        return sum(a != b for a, b in zip(word, name, strict=True)) <= 1
    return difflib.SequenceMatcher(None, word, name).ratio() > SHORT_RATIO


def did_you_mean(word: str, known: Iterable[str], quote: str = "") -> str:
    """Return ' Did you mean X?' with the nearest known word, or '' if no known word is similar."""
    found = nearest(word, known)
    return f" Did you mean {quote}{found[0]}{quote}?" if found else ""
