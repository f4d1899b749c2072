"""Checks a drl-train command line before Hydra is even imported, so that a typo is answered at once."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import module_path
from drl_cli.cli.errors import USAGE, USER_CODE, UsageError, did_you_mean, nearest
from drl_cli.cli.settings import all_keys, config_class, convert, unknown_key
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object, source_file

OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(=(?P<value>.*))?", re.DOTALL)
CONFIG_PATH = ("--config-path", "-cp", "--config-dir", "-cd")
VALUE_FLAGS = {
    **dict.fromkeys(("--config-path", "-cp"), "config-path"),
    **dict.fromkeys(("--config-name", "-cn"), "config-name"),
    **dict.fromkeys(("--config-dir", "-cd"), "config-dir"),
    **dict.fromkeys(("--cfg", "-c"), "cfg"),
    **dict.fromkeys(("--package", "-p"), "package"),
}
PLAIN_FLAGS = ("-m", "--multirun", "-r", "--run", "--resolve", "-i", "--info", "--version")


def conf_dir() -> Path:
    """The yaml files: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def algorithm_yaml(name: str) -> Path | None:
    """The yaml of an algorithm: ours in conf; of a user's module conf/algo/<module>.yaml or <module>.yaml beside it."""
    ours, path = conf_dir() / "algo" / f"{name}.yaml", module_path(name)
    source, file = source_file(path), f"{path.rpartition('.')[2]}.yaml"
    places = [source.parent / "conf" / "algo" / file, source.parent / file] if source is not None else []
    return next((place for place in [ours, *places] if place.is_file()), None)


def options(group: str) -> list[str]:
    """Names of the yaml files in a group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def groups() -> list[str]:
    """Names of the folders in conf."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """Hydra's flags, with their values, apart from the overrides."""

    flags: list[str]
    overrides: list[str]
    config_file: Path | None
    is_sweep: bool


def read_command(args: Sequence[str]) -> CommandLine:
    """Split a command line; raises UsageError for a flag that does not exist. Paths become absolute."""
    flags: list[str] = []
    overrides: list[str] = []
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
            raise UsageError(f"no flag '{arg}'.{did_you_mean(arg, [*PLAIN_FLAGS, *VALUE_FLAGS])}   try --help")
    file = None
    if "config-path" in named:
        file = Path(named["config-path"]) / f"{named.get('config-name', 'train').removesuffix('.yaml')}.yaml"
        if not file.is_file():
            raise UsageError(f"--config-path: there is no {file}")
    return CommandLine(flags, overrides, file, bool({"-m", "--multirun"} & set(flags)))


def with_free_keys(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra takes them: keys in these mappings need not be in any yaml."""
    free = re.compile(r"(env\.kwargs|optimizer\.kwargs|manage\.env_kwargs)[.=]")
    return [f"++{arg}" if free.match(arg) else arg for arg in overrides]


def check_command(command: CommandLine) -> None:
    """Raise UsageError with every wrong group, key and plain value on the command line.

    The exit code is 4 where nothing is wrong but that a user's module raised.
    """
    matches = [(arg, OVERRIDE.fullmatch(arg)) for arg in command.overrides]
    problems = [f"'{arg}' is not of the form key=value" for arg, match in matches if match is None]
    values = [match for _, match in matches if match is not None]
    raised: list[str] = []
    algo = _algorithm(command)
    is_pool = any(match["key"] == "env.backend" and match["value"] == "envpool" for match in values)
    for match in values:
        key, value = match["key"], match["value"] or ""
        if key.startswith("hydra"):
            continue
        if command.is_sweep and "(" in value:  # choice(...), range(...): each job is checked by itself
            continue
        if key in groups() and match["sign"] is None:
            if command.config_file is None and not (key == "env" and is_pool):  # EnvPool's ids take seconds to import
                for name in value.split(",") if command.is_sweep else [value]:
                    try:
                        check_option(key, _unquoted(name))
                    except UsageError as error:
                        (raised if error.exit_code == USER_CODE else problems).extend(error.problems)
        elif algo is not None or not key.startswith("algo."):
            problems += check_value(key, match["value"], command.is_sweep, algo or config_class(default("algo")))
    if problems or raised:
        raise UsageError([*problems, *raised], USAGE if problems else USER_CODE)


def check_option(group: str, name: str) -> None:
    """Raise UsageError for a group's option that does not exist, or a user's module that raises (exit 4)."""
    known = options(group)
    if name in known:
        return
    if group == "algo":
        config_class(name)
    elif group == "env":
        if line := unknown_env(name):
            raise UsageError(line)
    elif group == "network" and ":" in name:
        try:
            import_object(name)
        except NotFound as error:
            raise UsageError(f"no network '{name}': {error}") from error
        except ModuleRaised as error:
            raise UsageError(str(error), USER_CODE) from error
    else:
        kind = {"tuned": "set of tuned values"}.get(group, f"{group} option")
        raise UsageError(f"no {kind} '{name}'.{did_you_mean(name, known)}   available: {', '.join(known)}")


def unknown_env(name: str) -> str | None:
    """The error line for an environment that neither we, nor Gymnasium, nor a named module has; None when it exists."""
    from drl_cli.envs.make import exists, registered

    if exists(name):
        return None
    if ":" in name:
        return f"no environment '{name}': there is no module '{name.split(':')[0]}' to import"
    ours, all_ids = options("env"), registered()
    best = nearest(name, [*ours, *all_ids])
    return f"no environment '{name}'.{did_you_mean(name, ours if best and best[0] in ours else all_ids, 2)}"


def check_value(key: str, value: str | None, is_sweep: bool, algo: type[AlgoConfig]) -> list[str]:
    """Error lines for a key that does not exist or a plain value of the wrong type or out of range."""
    keys = all_keys(algo)
    if key not in keys:
        mappings = [name for name, kind in keys.items() if get_origin(kind) is Mapping]  # any key may be in one
        return [] if key.startswith(tuple(f"{name}." for name in mappings)) else [unknown_key(key, algo)]
    if value is None or "{" in value or (is_sweep and re.search(r"[,(]", value)) or _is_group(keys[key]):
        return []
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        return []  # Hydra's own grammar; it says what is wrong
    problems: list[str] = []
    convert(parsed, keys[key], key, problems, algo)
    return problems


def _is_group(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _algorithm(command: CommandLine) -> type[AlgoConfig] | None:
    """Config of the algorithm that the command line, the repeated run's config or the defaults name; None: no such."""
    name = default("algo")
    if named := [arg.removeprefix("algo=") for arg in command.overrides if arg.startswith("algo=")]:
        name = _unquoted(named[0].split(",")[0])
    elif command.config_file is not None:
        node = yaml.safe_load(command.config_file.read_text())
        name = str(node.get("algo", {}).get("name")) if isinstance(node, dict) else ""
    try:
        return config_class(name)
    except UsageError:  # said where the option is checked, or the config is built
        return None


def default(group: str) -> str:
    """The option of a group that train.yaml takes."""
    defaults = yaml.safe_load((conf_dir() / "train.yaml").read_text())["defaults"]
    return next(str(entry[group]) for entry in defaults if isinstance(entry, dict) and group in entry)


def _unquoted(value: str) -> str:
    return value.strip("'\" ")
