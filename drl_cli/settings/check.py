"""Checks a drl-train command line before Hydra is even imported, so that a typo is answered at once."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, get_origin

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.errors import USER_CODE, UsageError
from drl_cli.optim.optimizer_config import OPTIMIZERS
from drl_cli.settings.command_line import OVERRIDE, TEXTS, CommandLine
from drl_cli.settings.conf import conf_dir, default, groups, option_file, options, unreadable
from drl_cli.settings.env_names import check_env
from drl_cli.settings.hydra_grammar import is_sweep, parts, unquoted
from drl_cli.settings.own_yaml import algorithm_of, check_file
from drl_cli.settings.settings import all_keys, config_class, convert, unknown_key
from drl_cli.settings.words import bare_words, said
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object
from drl_cli.utils.spelling import did_you_mean

OF_HYDRA = ("hydra.searchpath", "hydra.job.env_set")
"""Hydra's own settings that have an effect here."""
INSTEAD = {
    **dict.fromkeys(("hydra.run.dir", "hydra.sweep.dir"), "output_dir=DIR"),
    **dict.fromkeys(("hydra/launcher", "hydra.launcher.n_jobs"), "sweep.jobs=2"),
    **dict.fromkeys(("hydra/sweeper", "hydra.sweeper.n_trials"), "-m with a=1,2 or choice(...)"),
    "hydra.verbose": "DRL_DEBUG=1",
}
"""What has the effect that others of them would have."""
MAIN_KEY = {"stop": "return", "worker": "num", "replay": "capacity", "network": "hidden", "checkpoint": "period"}
"""What a number for a whole group is probably meant for."""


def check_command(command: CommandLine) -> None:
    """Raise UsageError with every wrong group, key and plain value on the command line.

    The exit code is the least of theirs: 4, say, where nothing is wrong but that a user's module raised.
    """
    overrides, problems = bare_words(command.overrides)
    matches = [(arg, OVERRIDE.fullmatch(arg)) for arg in overrides]
    problems += [f"'{arg}' is not of the form key=value" for arg, match in matches if match is None]
    values = [match for _, match in matches if match is not None]
    algo = _algorithm(command, values)
    found = [UsageError(problems)] if problems else []
    for match in values:
        try:
            if lines := check_override(match, command, algo, values):
                raise UsageError(lines)
        except UsageError as error:
            found.append(error)
    if found:
        found.sort(key=lambda error: error.exit_code == USER_CODE)
        raise UsageError([line for error in found for line in error.problems], min(error.exit_code for error in found))


def check_override(
    match: re.Match[str], command: CommandLine, algo: type[AlgoConfig] | None, all_of_them: list[re.Match[str]]
) -> list[str]:
    """What is wrong with one of them, a line each; raises UsageError where that has an exit code of its own."""
    sign, key, value = match["sign"], match["key"], match["value"] or ""
    if key.startswith("hydra"):
        instead = f"; say {INSTEAD[key]}" if key in INSTEAD else ""
        return [] if key.startswith(OF_HYDRA) else [f"{key}: this setting of the config system has no effect{instead}"]
    if is_sweep(value) and not command.is_sweep:
        if str(all_keys(algo or AlgoConfig).get(key)).startswith("tuple"):
            return [f"{key}: a list needs brackets: {key}=[{value}]"]
        return [f"{key}={value}: several values are a sweep, which needs -m: drl-train -m {key}={value}"]
    if key in groups():
        if sign == "~":
            return [f"~{key}: a group can't be left out; say {key}=OPTION"]
        has_groups = command.config_file is None or "defaults:" in command.config_file.read_text()
        is_pool = any(other["key"] == "env.backend" and other["value"] == "envpool" for other in all_of_them)
        if not has_groups or (key == "env" and is_pool):  # EnvPool's ids take seconds to import
            return []
        if command.is_sweep and "(" in value:  # choice(...), glob(...): each job is checked by itself
            return []
        names = parts(value) if command.is_sweep else [value]
        return [line for name in names for line in check_option(key, unquoted(name), algo)]
    if algo is None and key.startswith("algo."):
        return []  # the line about the algorithm says enough
    keys = algo or config_class(default("algo"))
    if sign == "+" and key in all_keys(keys):
        return [f"+{key}: this key is there already, so say {key}={value}"]
    return check_value(key, match["value"], command.is_sweep, keys)


def check_option(group: str, name: str, algo: type[AlgoConfig] | None = None) -> list[str]:
    """What is wrong in the user's own yaml of a group's option, a line each.

    Raises UsageError for an option that does not exist, or a user's module that raises (exit 4).
    """
    known = options(group)
    if name in known:
        file = option_file(group, name)
        if file is None or file.is_relative_to(conf_dir()):
            return _of_another_algorithm(name, algo) if group == "tuned" else []
        return check_file(file, group, algo)
    if group == "algo":
        config_class(name)
    elif group == "env":
        check_env(name, known)
    elif group == "network" and ":" in name:
        try:
            import_object(name)
        except NotFound as error:
            raise UsageError(f"no network '{name}': {error}") from error
        except ModuleRaised as error:
            raise UsageError(str(error), USER_CODE) from error
    else:
        kind = {"tuned": "set of tuned values"}.get(group, f"{group} option")
        hint = did_you_mean(name, known)
        if group == "optimizer" and name.lower() in OPTIMIZERS.keys() - set(known):
            hint = f" Say optimizer.name={name.lower()}."
        if not hint and group in MAIN_KEY and re.fullmatch(r"[\d.e]+|\[[\d, ]*\]", name):
            hint = f" Did you mean {said(f'{group}.{MAIN_KEY[group]}', name)}?"
        raise UsageError(f"no {kind} '{name}'.{hint}   available: {', '.join(known)}")
    return []


def _of_another_algorithm(tuned: str, algo: type[AlgoConfig] | None) -> list[str]:
    """A line where a set of tuned values is for another algorithm than the run's."""
    owner, name = tuned.partition("-")[0], algo.__module__.rpartition(".")[2] if algo is not None else ""
    if algo is None or owner not in options("algo") or algorithm_of(owner) == name:
        return []
    return [f"tuned={tuned} is of algo={owner}, and this run has algo={name}; say algo={owner}, or tuned=none"]


def check_value(key: str, value: str | None, is_sweep: bool, algo: type[AlgoConfig]) -> list[str]:
    """Error lines for a key that does not exist or a plain value of the wrong type or out of range."""
    keys = all_keys(algo)
    if key not in keys:
        mappings = [name for name, kind in keys.items() if get_origin(kind) is Mapping]  # any key may be in one
        return [] if key.startswith(tuple(f"{name}." for name in mappings)) else [unknown_key(key, algo, value)]
    if value is None or "{" in value or (is_sweep and re.search(r"[,(]", value)):  # each job is checked by itself
        return []
    if dataclasses.is_dataclass(keys[key]):
        main = f"{key}.{MAIN_KEY[key]}={value}" if key in MAIN_KEY else f"{key}.KEY=VALUE"
        return [f"{key}: is a group of options; say {main}"]
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError:
        return []  # Hydra's own grammar; it says what is wrong
    if key in TEXTS and isinstance(parsed, int):  # the start of a run's id
        return []
    problems: list[str] = []
    convert(parsed, keys[key], key, problems, algo)
    return problems


def _algorithm(command: CommandLine, values: list[re.Match[str]]) -> type[AlgoConfig] | None:
    """Config of the algorithm that the command line, the repeated run's config or the defaults name; None: no such."""
    name = default("algo")
    if named := [match["value"] or "" for match in values if match["key"] == "algo"]:
        name = algorithm_of(unquoted(parts(named[0])[0]))
    elif command.config_file is not None:
        try:
            node = yaml.safe_load(command.config_file.read_text())
        except yaml.YAMLError as error:
            raise UsageError(unreadable(command.config_file, error)) from error
        algo = node.get("algo") if isinstance(node, dict) else None
        name = str(algo.get("name")) if isinstance(algo, dict) else name
    try:
        return config_class(name)
    except UsageError:  # said where the option is checked, or the config is built
        return None
