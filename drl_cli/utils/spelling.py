"""Find the known words that are nearest to a misspelled word, and our words for those of other tools (names.yaml)."""

import difflib
import re
from collections.abc import Container, Iterable, Mapping
from functools import cache
from pathlib import Path

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


@cache
def tables() -> Mapping[str, Mapping[str, str]]:
    """Return the tables in names.yaml: names of other tools for our keys and algorithms, and tasks of dm_control."""
    import yaml  # most commands do not need it

    text = Path(__file__).with_name("names.yaml").read_text()
    found: Mapping[str, Mapping[str, str]] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


ON_POLICY = ("worker.unroll", "algo.seq_len")
OFF_POLICY = (
    *("algo.n_step", "orchestrator.min_inserts", "orchestrator.sample_insert_ratio", "replay.alpha", "replay.beta"),
    *("replay.burn_in", "replay.eps", "replay.her_k", "replay.seq_len", "replay=hindsight", "replay=prioritized"),
)
"""Answers that only make sense for an algorithm that learns from rollouts, or from replay."""


def _found(word: str, table: str) -> list[str]:
    """Return the answers for a word. An entry with a group, such as env.time_limit, goes before entries without."""
    entries = tables()[table].items()
    full = word.replace("-", "_").lower()
    names = (full, full.rpartition(".")[2])
    found = ([answer for answer, words in entries if name in words.split()] for name in names)
    return next(filter(None, found), [])


def synonyms(word: str, keys: Container[str]) -> list[str]:
    """Return each of our keys, or `key=value`, for a word of another tool. The word may have a group."""
    found = [(answer, answer.partition("=")[0]) for answer in _found(word, "keys")]
    free = ("optimizer.kwargs.", "env.kwargs.")
    return [answer for answer, key in found if key in keys or key.startswith(free)]


def synonym(word: str, keys: Container[str]) -> str | None:
    """Return the first answer of `synonyms`, or None."""
    return next(iter(synonyms(word, keys)), None)


def absent(word: str) -> list[str]:
    """Return our keys for a word of another tool, although the algorithm of this run may not have them."""
    return [answer for answer in _found(word, "keys") if answer.startswith("algo.")]


def in_updates(word: str) -> str | None:
    """Return what to say for a word that sets how long other tools train, in a run that counts updates, or None."""
    name = word.rpartition(".")[2]
    if name in ("epochs", "max_epochs") or "algo.epochs" in _found(word, "keys"):
        return "say total_updates=N; one epoch has (transitions in the dataset) / trainer.batch_size updates"
    return "say total_updates=N" if "total_env_steps" in _found(word, "keys") else None


def note(word: str) -> str | None:
    """Return advice for a key that only other tools have."""
    return next(iter(_found(word, "notes")), None)


def nearest_algorithm(name: str) -> str | None:
    """Return what to type after `algo=` for an algorithm that only other tools have, or None."""
    plain = name.lower().replace("_", "").replace("-", "")
    return next((answer for answer, names in tables()["algorithms"].items() if plain in names.split()), None)


def other_option(group: str, word: str) -> str | None:
    """Return what to type for a word that is no option of the group, or None."""
    return tables()["options"].get(f"{group}={word.lower()}")
