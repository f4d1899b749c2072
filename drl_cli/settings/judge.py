"""Check whether a key exists and whether a value is valid for the key.

This module checks the command line, the user's yaml, sweeps, the options of commands, and the composed config.
"""

from collections.abc import Mapping
from typing import Any

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import algorithms
from drl_cli.errors import UsageError
from drl_cli.replay.base_config import ReplayConfig
from drl_cli.replay.config import SAMPLERS
from drl_cli.settings.algorithm import short_name
from drl_cli.settings.description import Key, is_free, keys_of
from drl_cli.settings.synonyms import note, synonym
from drl_cli.settings.value_types import ListOf, UnknownKey, group_of
from drl_cli.utils.spelling import nearest


def judge(key: Key, value: Any, algo: type[AlgoConfig] = AlgoConfig) -> Any:
    """Return the value converted for the config. Raise UsageError with a line for each problem.

    For a wrong key in a group, the error suggests a key of `algo`.
    """
    problems: list[str] = []
    result = key.type.read(value, key.name, problems)
    if problems:
        raise UsageError([unknown_key(line, algo) if isinstance(line, UnknownKey) else line for line in problems])
    return result


def problems_of(name: str, value: Any, algo: type[AlgoConfig]) -> list[str]:
    """Return a line for each problem with the key `name` and its value."""
    keys = keys_of(algo)
    if name not in keys:
        return [] if is_free(name, keys) else [unknown_key(name, algo, value)]
    try:
        judge(keys[name], value, algo)
    except UsageError as error:
        return error.problems
    return []


def unknown_key(path: str, algo: type[AlgoConfig], value: Any = None) -> str:
    """Return the error line for a key that does not exist, with the key that the user probably means.

    `value` is the value that the user gave to the key, or None.
    """
    keys = keys_of(algo)
    group, _, name = path.rpartition(".")
    if group in algorithms() and f"algo.{name}" in keys and group == short_name(algo):
        return f"{path}: no such group of options. Did you mean algo.{name}?"
    common = group_of(ReplayConfig).keys
    if group == "replay" and (
        owners := [sampler for sampler, kind in SAMPLERS.items() if name in group_of(kind).keys and name not in common]
    ):
        return f"{path}: only replay={' and replay='.join(owners)} {'has' if len(owners) == 1 else 'have'} this option"
    hint = _hint(group, name, keys, value)
    if not group:
        return f"{name}: no such option at the top level.{hint}"
    owner = short_name(algo) if group == "algo" else group
    return f"{path}: {owner} has no option '{name}'.{hint}"


def _hint(group: str, name: str, keys: Mapping[str, Key], value: Any) -> str:
    """Return a sentence with the key that the user probably means, or with advice, or ''."""
    full = f"{group}.{name}" if group else name
    other, advice = synonym(full, keys), note(full)
    siblings = [_last(key) for key, each in keys.items() if each.group == group]
    if not (other or advice) and (found := nearest(name, siblings)):
        return f" Did you mean {group + '.' if group else ''}{found[0]}?"
    same_name = [key for key in keys if _last(key) == name]
    same_name = [key for key in same_name if not key.startswith("reward.")] or same_name  # a module is seldom meant
    if other:
        return f" Did you mean {_with_value(other, keys, value)}?"
    if same_name:
        return f" Did you mean {', '.join([_with_value(same_name[0], keys, value), *same_name[1:3]])}?"
    if advice:
        return f" For that: {advice}"
    close = nearest(name, map(_last, keys))
    found = [key for key in keys if close and _last(key) == close[0]]
    return f" Did you mean {', '.join(found[:3])}?" if found else ""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _with_value(name: str, keys: Mapping[str, Key], value: Any) -> str:
    """Return the name of a key, or `name=[value]` if the key takes a list and `value` lacks brackets."""
    is_bare = name in keys and isinstance(keys[name].type, ListOf) and value and not str(value).startswith("[")
    return f"{name}=[{value}]" if is_bare else name
