"""Tab completion: a bash function for all commands, and the words that it offers. Hydra is too slow to be used here.

`eval "$(drl-train -sc install=bash)"` in ~/.bashrc turns it on.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import algorithms, installed
from drl_cli.config.config import DESCRIBING
from drl_cli.errors import UsageError
from drl_cli.run_folder.find import all_runs
from drl_cli.settings.algorithm import config_class
from drl_cli.settings.build import Key, keys_of
from drl_cli.settings.command_line import OVERRIDE, PLAIN_FLAGS, VALUE_FLAGS, command_names, read_command
from drl_cli.settings.conf import defaults, groups, options
from drl_cli.settings.value_types import Group, group_of

INSTALL = """_drl_complete() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" query=drl-train reply
    [[ $1 == */* ]] && query="${{1%/*}}/drl-train"
    local word="${{line##*[[:space:]]}}"
    COMPREPLY=()
    while IFS= read -r reply; do
        COMPREPLY+=("${{reply#"${{word%"$2"}}"}}")
    done < <(COMP_LINE="$line" "$query" -sc query=bash 2>/dev/null)
    [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *[=.:/,] ]] && compopt -o nospace 2>/dev/null
    return 0
}}
complete -o default -F _drl_complete {commands}"""
"""Bash also splits words at `=` and `:`. A completion must therefore omit the part of the word before `$2`."""

RUNS = ("run", "runs", "resume", "from_config", "load_weights")
"""Keys whose values name runs."""


def shell_completion(what: str, line: str) -> list[str] | None:
    """Return the lines that `drl-train -sc WHAT` prints, or None if Hydra prints them. Raise UsageError.

    Hydra has the functions for zsh and fish, which ask for words with `query=bash` and `query=fish`.
    """
    if what == "install=bash":
        return INSTALL.format(commands=" ".join(command_names())).splitlines()
    if what == "uninstall=bash":
        return [f"complete -r {' '.join(command_names())}", "unset -f _drl_complete"]
    if what in ("query=bash", "query=fish"):
        return completions(line)
    if what.partition("=")[2] in ("zsh", "fish"):
        return None
    raise UsageError(f'-sc {what}: say install=bash, or uninstall=bash, as in eval "$(drl-train -sc install=bash)"')


def completions(line: str) -> list[str]:
    """Return the words that can complete the last word of a command line."""
    command, *words = line.split()
    word = words.pop() if words and not line[-1].isspace() else ""
    name = Path(command).name.removeprefix("drl-")
    if name == "train" or name == "bench":
        found = _train(words, word)
    elif name == "list":
        from drl_cli.cli.list import TOPICS

        topics = [*_topics(_keys(words)), "format=markdown"] if words[:1] == ["keys"] else []
        found = topics if words else [*TOPICS, "--help"]
        if words[:1] == ["runs"]:
            found = [*_options("list_runs", word), *(f"{key}=" for key in ("env", "algo", "status", *DESCRIBING))]
    else:
        found = _options(name, word)
    return sorted({each for each in found if each.startswith(word)})


def _train(words: Sequence[str], word: str) -> Iterable[str]:
    if words and words[-1] in VALUE_FLAGS:  # the word is a file name, which bash completes
        return []
    if word.startswith("-"):
        return ["--help", *PLAIN_FLAGS, *VALUE_FLAGS]
    is_help = bool({"--help", "-h"} & set(words))
    try:
        overrides = read_command([each for each in words if each not in ("--help", "-h")]).overrides
    except UsageError:  # running the command will report the error
        overrides = []
    keys = _keys(overrides)
    if is_help:
        return _topics(keys)
    match = OVERRIDE.fullmatch(word)
    sign = (match and match["sign"]) or ""
    if match is None or match["value"] is None:
        group = word.removeprefix(sign).rpartition(".")[0]
        choices = [] if group else [f"{sign}{name}=" for name in groups() if options(name) != ["default"]]
        inside = [key for key in keys.values() if key.group == group]
        return [*choices, *(f"{sign}{key.name}{'.' if isinstance(key.type, Group) else '='}" for key in inside)]
    given, before = f"{sign}{match['key']}=", match["value"].rpartition(",")
    return [given + before[0] + before[1] + value for value in _values(match["key"], keys)]


def _keys(overrides: Sequence[str]) -> Mapping[str, Key]:
    """Return the keys of a run with the algorithm that `overrides` name, or else with the default algorithm."""
    named = [arg.removeprefix("algo=").split(",")[0] for arg in overrides if arg.startswith("algo=")]
    try:
        return keys_of(config_class(named[-1] if named else defaults()["algo"]))
    except UsageError:
        return keys_of(AlgoConfig)


def _values(key: str, keys: Mapping[str, Key]) -> Iterable[str]:
    found = [*(options(key) if key in groups() else ()), *(keys[key].type.words if key in keys else ())]
    if key == "env":
        from drl_cli.envs.make import registered

        found += registered()
    if key == "algo":
        found += ["auto", *algorithms(), *installed()]
    return found + _runs() if key in RUNS else found


def _topics(keys: Mapping[str, Key]) -> list[str]:
    """Return the words that `drl-list keys` and `--help` accept: `group`, `group=option` and `key`."""
    chosen = [f"{group}={option}" for group in groups() for option in options(group)]
    return [*groups(), *chosen, *(name for name, key in keys.items() if not isinstance(key.type, Group))]


def _options(command: str, word: str) -> list[str]:
    """Return `option=` for each option of a command. If `word` is already `option=...`, return the option's values."""
    try:
        kinds = group_of(importlib.import_module(f"drl_cli.cli.{command}").Options).keys
    except (ImportError, AttributeError):  # an unknown command, or one without Options
        return []
    key, equals, _ = word.partition("=")
    if not equals:
        return ["--help", "--version", *(f"{name}=" for name in kinds)]
    words = kinds[key].words if key in kinds else ()
    values = _runs() if key in RUNS else ["best", "last"] if key == "checkpoint" else words
    return [f"{key}={value}" for value in values]


def _runs() -> list[str]:
    return ["latest", *map(str, all_runs("outputs"))]
