"""Split a drl-train command line into flags and overrides, and convert both to forms that Hydra accepts."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from drl_cli.errors import UsageError
from drl_cli.settings.bare_words import flag_line
from drl_cli.settings.conf import SEARCH_PATH, defaults, find_own_dirs, groups, own_dirs
from drl_cli.settings.trust import consent, read_run, trusts, typed_asks
from drl_cli.utils.files import read_file
from drl_cli.utils.hydra_grammar import PROSE, listed, unquoted
from drl_cli.utils.outside import look_in

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
