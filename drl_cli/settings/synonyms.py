"""The names of other tools for our keys and algorithms, so that an error for such a name suggests ours."""

from collections.abc import Container

from drl_cli.settings.conf import data_file

ON_POLICY = ("worker.unroll", "algo.seq_len")
OFF_POLICY = (
    *("algo.n_step", "orchestrator.min_inserts", "orchestrator.sample_insert_ratio", "replay.alpha", "replay.beta"),
    *("replay.burn_in", "replay.eps", "replay.her_k", "replay.seq_len", "replay=hindsight", "replay=prioritized"),
)
"""Answers that only make sense for an algorithm that learns from rollouts, or from replay."""


def _found(word: str, table: str) -> list[str]:
    """Return the answers for a word. An entry with a group, such as env.time_limit, goes before entries without."""
    entries = data_file("synonyms")[table].items()
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
    return next(
        (answer for answer, names in data_file("synonyms")["algorithms"].items() if plain in names.split()), None
    )


def other_option(group: str, word: str) -> str | None:
    """Return what to type for a word that is no option of the group, or None."""
    answer: str | None = data_file("synonyms")["options"].get(f"{group}={word.lower()}")
    return answer
