"""Follow the advice of an error: read what the error tells the user to type, type it, and read the next answer."""

import functools
import re

from key_search import checked

from drl_cli.errors import UsageError

WORD = re.compile(r"\b((?:[a-z]+\.)?[a-z_]+)=([\w.+:-]+|\[[^\]]*\])")
ADVICE = re.compile(r"(?:\bsay |; add |, or add |For this: |Did you mean )([^;?]*)")


def advised(line):
    """Return what a line tells the user to type: a list of alternatives, each a dict of values by key."""
    match = ADVICE.search(line)
    if match is None or re.search(r"=[A-Z.]+\b", match[1]):
        return []
    parts = re.split(r",? or (?:an algorithm [^=]*such as )?", match[1])
    return [found for part in parts if (found := dict(WORD.findall(part)))]


def answer(words):
    """Return the error lines for these words (a dict of values by key); [] if the run can start."""
    return _lines(tuple(f"{key}={value}" for key, value in sorted(words.items())))


@functools.cache  # several pieces of advice lead to the same words
def _lines(words):
    try:
        checked(words)
    except UsageError as error:
        return error.problems
    return []


def loops(words, ask=answer, depth=5):
    """Yield a line for each advice that, when typed, leads to the same error, or to advice that undoes it."""
    yield from _follow(words, {}, ask, depth, set())


def _follow(words, said, ask, depth, seen):
    here = (*sorted(words.items()), *sorted(said.items()))
    if here in seen:
        return
    seen.add(here)
    for line in ask(words):
        for advice in advised(line):
            undone = [key for key in advice if key in said and said[key] != advice[key]]
            if undone or depth == 0:
                yield f"{_text(words)}: {line}   (had been told {_text(said)})"
                continue
            after = {**words, **advice}
            if after == words or line in ask(after):
                yield f"{_text(words)}: {line}   (typing {_text(advice)} changes nothing)"
                continue
            yield from _follow(after, {**said, **advice}, ask, depth - 1, seen)


def _text(words):
    return " ".join(f"{key}={value}" for key, value in words.items())
