"""Split a drl-train command line into flags and overrides, and convert both to forms that Hydra accepts."""

import dataclasses
import os
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import algorithms
from drl_cli.errors import UsageError
from drl_cli.settings.algorithm import algorithm_of, config_class
from drl_cli.settings.build import is_free, is_on_policy, keys_of, unknown_key
from drl_cli.settings.conf import SEARCH_PATH, defaults, find_own_dirs, groups, options, own_dirs
from drl_cli.settings.trust import consent, read_run, trusts, typed_asks
from drl_cli.settings.value_types import ListOf
from drl_cli.utils.files import read_file
from drl_cli.utils.hydra_grammar import PROSE, is_open, listed, unquoted
from drl_cli.utils.outside import look_in
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


OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(=(?P<value>.*))?", re.DOTALL)
VALUE_FLAGS = {
    **dict.fromkeys(("--config-path", "-cp"), "config-path"),
    **dict.fromkeys(("--config-name", "-cn"), "config-name"),
    **dict.fromkeys(("--config-dir", "-cd"), "config-dir"),
    **dict.fromkeys(("--cfg", "-c"), "cfg"),
    **dict.fromkeys(("--package", "-p"), "package"),
}
"""Flags that need a value. A flag and its short form have the same name here."""
DATA = re.compile(r"^data=")
"""The short form of data.source=."""
PLAIN_FLAGS = ("-m", "--multirun", "--resolve", "--version")
TEXTS = ("resume", "from_config", "load_weights", "output_dir", "data.source", "name", *PROSE)
"""Keys whose values are always text. Otherwise, Hydra could read a run id, which begins with digits, as a number."""
SPECIAL = set("'\"$,")
"""The signs that have a meaning in the value of a key in TEXTS, so that a value with them needs quotes."""


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A command line: flags with their values, overrides, and what the flags mean."""

    flags: list[str]
    overrides: list[str]
    config_file: Path | None
    is_sweep: bool
    prints: bool = False  # print the config instead of starting a run


def read_command(args: Sequence[str]) -> CommandLine:
    """Split a command line and make the paths of its flags absolute. Raise UsageError if a flag does not exist.

    Also set `conf.own_dirs` to the folders that the command line names.
    """
    flags, overrides, problems = list[str](), list[str](), list[str]()
    named: dict[str, str] = {}
    rest = [*args]
    while rest:
        arg = rest.pop(0)
        flag, equals, value = arg.partition("=")
        if not arg.startswith("-"):
            overrides.append(DATA.sub("data.source=", arg))
        elif name := VALUE_FLAGS.get(flag):
            value = value if equals else rest.pop(0) if rest else ""
            # Hydra would resolve a relative path against its own config folder
            named[name] = os.path.abspath(value) if name in ("config-path", "config-dir") else value
            flags += [flag, named[name]]
        elif arg in PLAIN_FLAGS:
            flags.append(arg)
        else:
            problems.append(flag_line(arg, rest, [*PLAIN_FLAGS, *VALUE_FLAGS], args))
    if named.get("cfg", "job") != "job":
        problems.append("--cfg: only --cfg job is possible; it prints the config")
    if "cfg" not in named and ("package" in named or "--resolve" in flags):
        problems.append("--package and --resolve say how the config is printed: add --cfg job")
    if problems:
        raise UsageError(problems)
    file = _config_file(named)
    keys = {arg.partition("=")[0] for arg in overrides}
    if file is not None and is_run(file):
        consent(file, read_run(file), trust=trusts(overrides), typed=overrides)
    if typed_asks(overrides) or not (is_run(file) or {"resume", "from_config"} & keys):
        look_in(os.getcwd())
    own_dirs[:] = find_own_dirs(named.get("config-dir"), overrides, file)
    return CommandLine(flags, overrides, file, bool({"-m", "--multirun"} & set(flags)), "cfg" in named)


def is_run(file: Path | None) -> bool:
    """Return whether a main config is the config.yaml of a run, or a copy of one, whose content is data.

    A main config that the user wrote has a list of defaults.
    """
    if file is None:
        return False
    return (file.parent / "run.json").exists() or b"defaults:" not in read_file(file)


def _config_file(named: dict[str, str]) -> Path | None:
    """Return the user's main config, or None if no flag names one. Raise UsageError if the file does not exist."""
    if not {"config-path", "config-name"} & named.keys():
        return None
    name = f"{named.get('config-name', 'train').removesuffix('.yaml')}.yaml"
    places = [Path(named[flag]) for flag in ("config-dir", "config-path") if flag in named]
    if file := next((place / name for place in places if (place / name).is_file()), None):
        return file
    if not places:
        raise UsageError(f"--config-name: say by --config-path in which folder {name} is")
    raise UsageError(f"--config-path: there is no {' or '.join(str(place / name) for place in places)}")


def flags_for_hydra(flags: Sequence[str]) -> list[str]:
    """Return the flags without --config-dir, because a search path plugin passes the user's folders to Hydra."""
    places = {i for i, flag in enumerate(flags) if VALUE_FLAGS.get(flag) == "config-dir"}
    return [flag for i, flag in enumerate(flags) if not {i, i - 1} & places]


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """Return the overrides in a form that Hydra accepts, without hydra.searchpath.

    Prefix keys with `++`, which sets a key even if no yaml contains it, and groups that train.yaml does not name with
    `+`. `judge` has already refused wrong keys.
    """
    return [_for_hydra(arg) for arg in overrides if not arg.lstrip("+").startswith(f"{SEARCH_PATH}=")]


def path_word(key: str, path: Path) -> str:
    """Return the override that sets a key in TEXTS to a path."""
    return f"{key}={_quoted(str(path)) if SPECIAL & set(str(path)) else path}"


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", r"\'"))


def _for_hydra(arg: str) -> str:
    key, equals, value = arg.lstrip("+").partition("=")
    if key in groups():
        return f"+{key}={value}" if equals and key not in defaults() else arg
    if key in PROSE and value not in ("", "null") and unquoted(value) == value:
        value = _quoted(value)
    elif key == "data.source" and value.startswith("["):
        value = f"[{','.join(map(_quoted, listed(value)))}]"
    elif key in TEXTS and value not in ("", "null") and not SPECIAL & set(value):
        value = f"'{value}'"
    return f"++{key}={value}" if equals and not key.startswith("~") else arg
