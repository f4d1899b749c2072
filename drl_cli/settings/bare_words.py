"""Explain words of a command line that are not key=value, such as `--env X`, `env X` or `Pendulum-v1`."""

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import algorithms
from drl_cli.errors import UsageError
from drl_cli.settings.algorithm import algorithm_of, config_class
from drl_cli.settings.conf import defaults, groups, options
from drl_cli.settings.judge import is_free, is_on_policy, keys_of, unknown_key
from drl_cli.settings.value_types import ListOf
from drl_cli.utils.hydra_grammar import PROSE, is_open
from drl_cli.utils.spelling import OFF_POLICY, ON_POLICY, did_you_mean, synonym

ENV_ID = re.compile(r"[\w./-]+(:[\w./-]+)?-v\d+|[\w.]+:[\w./-]+")
KEY = re.compile(r"[+~]*[\w./-]+")


def meant(word: str, others: Sequence[str] = ()) -> str | None:
    """Return the key or `key=value` that a word means. The word may be a key, the last part of a key, or a synonym.

    If one of the `others`, which are the words of the same command line, is `algo=...`, prefer a key that this
    algorithm reads.
    """
    name = word.replace("-", "_")
    keys = {key for algo in algorithms() for key in keys_of(config_class(algo))} | set(groups())
    if name in keys:
        return name
    in_order = sorted(keys, key=lambda key: (key.startswith("reward."), len(key)))  # a reward module is seldom meant
    same = [key for key in in_order if key.rpartition(".")[2] == name]
    return synonym(name, keys - _not_read(others)) or next(iter(same), None)


def _not_read(words: Sequence[str]) -> set[str]:
    """Return the keys without effect on the kind of algorithm that `algo=...` in these words chooses."""
    chosen = [word.removeprefix("algo=") for word in words if word.startswith("algo=")]
    try:
        keys = keys_of(config_class(algorithm_of(chosen[-1]))) if chosen else {}
    except UsageError:  # reported by the check of the algorithm
        return set()
    return {*(OFF_POLICY if is_on_policy(keys) else ON_POLICY)} if keys else set()


def as_override(key: str, value: str) -> str:
    """Return `key=value`, with brackets if the key takes a list. If `key` is already `key=value`, return it."""
    if "=" in key:
        return key
    keys = keys_of(AlgoConfig)
    needs_brackets = value and key in keys and isinstance(keys[key].type, ListOf) and not value.startswith("[")
    is_switch = key in keys and keys[key].type.words == ("true", "false")
    return f"{key}={f'[{value}]' if needs_brackets else value or ('true' if is_switch else '...')}"


def flag_line(flag: str, rest: list[str], flags: Sequence[str], words: Sequence[str] = ()) -> str:
    """Return the error line for an unknown flag. If the flag means a key, remove the key's value from `rest`.

    `words` is the whole command line.
    """
    word, equals, value = flag.lstrip("-").partition("=")
    name, keys = word.replace("-", "_"), keys_of(AlgoConfig)
    key = name if is_free(name, keys) else meant(word, words) if len(word) > 1 else None
    group, dot, _ = name.partition(".")
    file = value or next(iter(rest), "")
    if key is None and file.endswith((".yaml", ".yml")):
        rest[:1] = [] if not value else rest[:1]
        return (
            f"no flag '{flag.partition('=')[0]}'; say --config-path {Path(file).parent} --config-name {Path(file).stem}"
        )
    if key is None and not (dot and group in groups()):
        return f"no flag '{flag}'.{did_you_mean(flag.partition('=')[0], flags)}   try --help"
    if not equals and rest and not rest[0].startswith("-") and "=" not in rest[0]:
        value = rest.pop(0)
    if key is None:
        unknown = unknown_key(name, config_class(defaults()["algo"]))
        return f"no flag '--{word}': options have no dashes; {unknown}   drl-list keys {group}"
    if key == "mode" and value not in options("mode"):
        value = ""
    return f"no flag '--{word}': options have no dashes; say {as_override(key, value)}"


def command_names() -> list[str]:
    """Return the names of the commands that this package installs."""
    try:
        points = distribution("drl-cli").entry_points
    except PackageNotFoundError:
        return ["drl-train"]
    return sorted(point.name for point in points if point.group == "console_scripts")


def split_bare_words(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that look like overrides, and an error line for each word that does not."""
    good, problems, rest = list[str](), list[str](), list(overrides)
    while rest:
        arg = rest.pop(0)
        if arg.partition("=")[0] in PROSE and "=" in arg:
            good.append(arg)
        elif "=" in arg.strip("=:") and is_open(arg.partition("=")[2]) and rest:
            while is_open(arg.partition("=")[2]) and rest:
                arg += f" {rest.pop(0)}"
            problems.append(f"a value with spaces needs quotes around it: '{arg}'")
        elif (pair := arg.partition(":"))[0] in groups() and pair[2]:
            problems.append(f"'{arg}' is not of the form key=value; say {as_override(pair[0], pair[2])}")
        elif ENV_ID.fullmatch(arg):
            problems.append(_bare(arg))
        elif "=" in arg.strip("=:") or arg.startswith("~") or not KEY.fullmatch(arg.rstrip("=:")):
            good.append(arg)
        elif rest and (key := meant(arg.rstrip("=:"), overrides)) and ("=" not in rest[0] or rest[0].startswith("=")):
            value = rest.pop(0)
            value = rest.pop(0) if value == "=" and rest else value.lstrip("=")
            problems.append(f"'{arg} {value}': key and value are one word; say {as_override(key, value)}")
        elif arg.endswith("="):
            good.append(arg)
        else:
            problems.append(_bare(arg))
    return good, problems


def _bare(word: str) -> str:
    if word != "train" and f"drl-{word}" in command_names():
        return f"'{word}' is not of the form key=value; drl-{word} is another command"
    if word in ("help", "version", "multirun"):
        return f"'{word}' is not of the form key=value. Did you mean --{word}?"
    if key := meant(word):
        return f"{word}: has no value; say {as_override(key, '')}"
    named = ("algo", "mode", "env", "network", "replay", "optimizer", "reward", "tuned")
    guesses = [f"{group}={word.lower()}" for group in named if word.lower() in options(group)]
    guesses += [f"resume={word}"] if word == "latest" or (Path(word) / "run.json").is_file() else []
    guesses += [f"env={word}"] if ENV_ID.fullmatch(word) else []
    hint = f" Did you mean {guesses[0]}?" if guesses else "   try --help"
    return f"'{word}' is not of the form key=value.{hint}"
