"""A drl-train command line: Hydra's flags apart from the overrides, and how both are handed to Hydra."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from drl_cli.errors import UsageError
from drl_cli.settings.bare_words import flag_line
from drl_cli.settings.conf import SEARCH_PATH, defaults, find_own_dirs, groups, own_dirs

OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(=(?P<value>.*))?", re.DOTALL)
CONFIG_PATH = ("--config-path", "-cp", "--config-dir", "-cd")
VALUE_FLAGS = {
    **dict.fromkeys(("--config-path", "-cp"), "config-path"),
    **dict.fromkeys(("--config-name", "-cn"), "config-name"),
    **dict.fromkeys(("--config-dir", "-cd"), "config-dir"),
    **dict.fromkeys(("--cfg", "-c"), "cfg"),
    **dict.fromkeys(("--package", "-p"), "package"),
}
PLAIN_FLAGS = ("-m", "--multirun", "--resolve", "--version")
FREE_KEYS = re.compile(r"(env\.kwargs|optimizer\.kwargs|manage\.env_kwargs)[.=]")
"""Where any key may be, in no yaml."""
TEXTS = ("resume", "from_config", "load_weights", "output_dir")
"""Keys whose values are text, whatever they look like: a path, the digits that a run's id begins with."""


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """Hydra's flags, with their values, apart from the overrides."""

    flags: list[str]
    overrides: list[str]
    config_file: Path | None
    is_sweep: bool
    prints: bool = False  # the config, instead of a run


def read_command(args: Sequence[str]) -> CommandLine:
    """Split a command line; raises UsageError for a flag that does not exist. Paths become absolute.

    From then on the user's folders that it names are looked into for yaml options.
    """
    flags, overrides, problems = list[str](), list[str](), list[str]()
    named: dict[str, str] = {}
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        flag, equals, value = arg.partition("=")
        if not arg.startswith("-"):
            overrides.append(arg)
        elif flag in VALUE_FLAGS:
            value = value if equals else rest.pop(0) if rest else ""
            if flag in CONFIG_PATH:  # meant from where the user stands; Hydra would take it from where our file is
                value = os.path.abspath(value)
            named[VALUE_FLAGS[flag]] = value
            flags += [flag, value]
        elif arg in PLAIN_FLAGS:
            flags.append(arg)
        else:
            problems.append(flag_line(arg, rest, [*PLAIN_FLAGS, *VALUE_FLAGS]))
    if named.get("cfg", "job") != "job":
        problems.append("--cfg: job is all there is; it prints the run's config")
    if "cfg" not in named and ("package" in named or "--resolve" in flags):
        problems.append("--package and --resolve say how the config is printed: add --cfg job")
    if problems:
        raise UsageError(problems)
    file = _config_file(named)
    own_dirs[:] = find_own_dirs(named.get("config-dir"), overrides, file)
    return CommandLine(flags, overrides, file, bool({"-m", "--multirun"} & set(flags)), "cfg" in named)


def _config_file(named: dict[str, str]) -> Path | None:
    """The user's main config, where the flags name one; raises UsageError when it is not there."""
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
    """The flags without --config-dir: the user's folders are in our search path."""
    rest, kept = list(flags), list[str]()
    while rest:
        flag = rest.pop(0)
        taken = [flag, rest.pop(0)] if flag in VALUE_FLAGS else [flag]
        kept += [] if VALUE_FLAGS.get(flag) == "config-dir" else taken
    return kept


def with_free_keys(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra takes them.

    Keys in these mappings need not be in any yaml, nor a group of the user's in our defaults; text
    is quoted; the folders of hydra.searchpath are in our search path.
    """
    return [_for_hydra(arg) for arg in overrides if not arg.lstrip("+").startswith(f"{SEARCH_PATH}=")]


def _for_hydra(arg: str) -> str:
    key, equals, value = arg.partition("=")
    if FREE_KEYS.match(arg):
        return f"++{arg}"
    if key in TEXTS and value not in ("", "null") and not set("'\"$,") & set(value):
        return f"{key}='{value}'"
    return f"+{arg}" if equals and key in groups() and key not in defaults() else arg
