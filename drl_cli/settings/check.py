"""Check a drl-train command line, and the user's yaml that it names, before the slow import of Hydra."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.config.config import Config
from drl_cli.errors import USER_CODE, Problems, UsageError, as_usage_error
from drl_cli.optim.optimizer_config import OPTIMIZERS
from drl_cli.settings.algorithm import action_problem, algorithm_of, config_class, short_name
from drl_cli.settings.build import Key, is_free, keys_of, problems_of
from drl_cli.settings.command_line import OVERRIDE, TEXTS, CommandLine, as_override, split_bare_words
from drl_cli.settings.conf import conf_dir, defaults, groups, option_file, options, unreadable
from drl_cli.settings.env_names import check_env, default_algorithm, typed_spec, typed_values
from drl_cli.settings.first_try import SHORT_RUN, WITH_TUNED
from drl_cli.settings.options import warn_of_repeats
from drl_cli.settings.value_types import MISSING, Group, ListOf, MappingOf, group_of
from drl_cli.utils.hydra_grammar import PROSE, is_sweep, parts, unquoted
from drl_cli.utils.outside import ModuleRaised, NotFound, import_object
from drl_cli.utils.spelling import did_you_mean, in_updates, nearest, other_option, synonym

USED_HYDRA_KEYS = ("hydra.searchpath", "hydra.job.env_set")
"""The settings of Hydra that have an effect in drl-train."""
INSTEAD = {
    **dict.fromkeys(("hydra.run.dir", "hydra.sweep.dir"), "output_dir=DIR"),
    **dict.fromkeys(("hydra/launcher", "hydra.launcher.n_jobs"), "sweep.jobs=2"),
    **dict.fromkeys(("hydra/sweeper", "hydra.sweeper.n_trials"), "-m with a=1,2 or choice(...)"),
    "hydra.verbose": "DRL_DEBUG=1",
}
"""For each setting of Hydra that has no effect: what the user can write instead."""
PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$", re.MULTILINE)
MAIN_KEY = {
    **{"stop": "return", "worker": "num", "reanalyzer": "num", "replay": "capacity", "network": "hidden"},
    "checkpoint": "period",
}
"""For each group: the key that the user probably means by setting the group to a number, as in `stop=200`."""


def check_command(command: CommandLine) -> None:
    """Raise UsageError with every wrong group, key and value on the command line.

    The exit code is the smallest exit code of all problems.
    """
    overrides, problems = split_bare_words(command.overrides)
    matches = [(arg, OVERRIDE.fullmatch(arg)) for arg in overrides]
    values = [match for _, match in matches if match is not None and not match["key"].startswith("@")]
    problems += [f"'{arg}' is not of the form key=value" for arg, match in matches if match not in values]
    algo, found = None, Problems()
    with found.collect():
        algo = _algorithm(command, values)
    with found.collect():
        if problems:
            raise UsageError(problems)
    for match in values:
        with found.collect():
            if lines := _check_override(match, command, algo, values):
                raise UsageError(lines)
    with found.collect():
        if found.errors and not command.is_sweep and (line := _action_problem(command, algo)):
            raise UsageError(line)
    found.report()
    warn_of_repeats([(match["key"], match["value"] or "") for match in values])


def _action_problem(command: CommandLine, algo: type[AlgoConfig] | None) -> str | None:
    """Return why the typed algorithm can't act in the typed environment; None if it can, or if this is unknown."""
    typed = typed_values(command.overrides)
    is_one = {"algo", "env"} <= typed.keys() and not any(is_sweep(typed[key]) for key in ("algo", "env"))
    if algo is None or command.config_file is not None or not is_one:
        return None
    spec = typed_spec(tuple(command.overrides))
    option = unquoted(typed["algo"])
    return action_problem(algorithm_of(option), spec, option, typed.get("mode", "")) if spec is not None else None


def _check_override(
    match: re.Match[str], command: CommandLine, algo: type[AlgoConfig] | None, overrides: Sequence[re.Match[str]]
) -> list[str]:
    """Return a line for each problem with the override `match`. Raise UsageError like `check_option`.

    `algo` is None if the algorithm does not exist.
    """
    sign, key, value = match["sign"], match["key"], match["value"] or ""
    if key.startswith("hydra"):
        instead = f"; say {INSTEAD[key]}" if key in INSTEAD else ""
        used = key.startswith(USED_HYDRA_KEYS)
        return [] if used else [f"{key}: this setting of the config system has no effect{instead}"]
    keys = keys_of(algo or AlgoConfig)
    if is_sweep(value) and not command.is_sweep and key not in PROSE:
        if key in keys and isinstance(keys[key].type, ListOf):
            return [f"{key}: a list needs brackets: {key}=[{value}]"]
        if key in keys and getattr(keys[key].type, "base", None) is float and re.fullmatch(r"0,\d+", value):
            return [f"{key}={value}: a number has a point; say {key}={value.replace(',', '.')}"]
        if re.fullmatch(r"\d{1,3}(,\d{3})+", value):
            return [f"{key}={value}: a number has no commas; say {key}={value.replace(',', '_')}"]
        typed = "data" if key == "data.source" else key
        joined = f"; for one run with all of them: data=[{value}]" if typed == "data" else ""
        return [f"{typed}={value}: several values are a sweep, which needs -m: drl-train -m {typed}={value}{joined}"]
    if key in groups():
        uses_envpool = any(other["key"] == "env.backend" and other["value"] == "envpool" for other in overrides)
        if key == "env" and uses_envpool and sign != "~":  # not checked: a lookup of EnvPool's ids takes seconds
            return []
        return _check_choice(sign, key, value, command, algo)
    if algo is None and key.startswith("algo."):
        return []  # the wrong algorithm has already been reported
    is_offline = typed_values(command.overrides).get("mode") == "offline"
    if is_offline and key not in keys and (advice := in_updates(key)):
        return [f"{key}: mode=offline counts gradient updates; {advice}"]
    if sign == "+" and key in keys:
        return [f"+{key}: this key is there already, so say {key}={value}"]
    if sign == "~" and key in keys and not isinstance(keys[key].type, MappingOf):
        return [f"{key}: is missing, say {key}=..."]
    typed = unquoted(parts(typed_values(command.overrides).get("algo", ""))[0]) or None
    return _check_value(key, match["value"], command.is_sweep, algo or config_class(defaults()["algo"]), typed)


def _check_choice(
    sign: str | None, group: str, value: str, command: CommandLine, algo: type[AlgoConfig] | None
) -> list[str]:
    if sign == "~":
        return [f"~{group}: a group can't be left out; say {group}=OPTION"]
    has_groups = command.config_file is None or "defaults:" in command.config_file.read_text()
    if not has_groups or (command.is_sweep and "(" in value):  # choice(...), glob(...): jobs are checked later
        return []
    names = parts(value) if command.is_sweep else [value]
    return [line for name in names for line in check_option(group, unquoted(name), algo)]


def check_option(group: str, name: str, algo: type[AlgoConfig] | None = None) -> list[str]:
    """Return a line for each problem with `group=name`. If the user wrote the option's yaml, check it too.

    Raise UsageError if the option does not exist, or if a user's module raises (exit 4).
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
    elif group in ("network", "reward") and ":" in name:
        prefix = f"no {group} '{name}': "
        with as_usage_error(NotFound, prefix=prefix), as_usage_error(ModuleRaised, exit_code=USER_CODE):
            import_object(name)
    else:
        kind = {"tuned": "set of tuned values"}.get(group, f"{group} option")
        if group == "tuned":  # the sets of other algorithms can't be used
            known = [each for each in known if each.startswith(f"{name.partition('-')[0]}-")] or known
        hint = did_you_mean(name, known)
        if group == "reward" and name == "null":
            hint = " Did you mean none?"
        if group == "optimizer" and name.lower() in OPTIMIZERS.keys() - set(known):
            hint = f" Say optimizer.name={name.lower()}."
        if (other := other_option(group, name)) is not None:
            hint = f" Did you mean {other}?"
        if not hint and group in MAIN_KEY and re.fullmatch(r"[\d.e]+|\[[\d, ]*\]", name):
            hint = f" Did you mean {as_override(f'{group}.{MAIN_KEY[group]}', name)}?"
        if not hint and f"{group}.{name}" in keys_of(AlgoConfig):
            hint = f" Did you mean {synonym(name, keys_of(AlgoConfig)) or f'{group}.{name}=...'}?"
        if not hint:
            inside = [key.name.rpartition(".")[2] for key in keys_of(AlgoConfig).values() if key.group == group]
            hint = f" Did you mean {group}.{near[0]}=...?" if (near := nearest(name, inside)) else ""
        raise UsageError(f"no {kind} '{name}'.{hint}   available: {', '.join(known)}")
    return []


def _of_another_algorithm(tuned: str, algo: type[AlgoConfig] | None) -> list[str]:
    """Return an error line if the tuned values are not for the run's algorithm."""
    owner, name = tuned.partition("-")[0], short_name(algo) if algo is not None else ""
    if algo is None or owner not in options("algo") or algorithm_of(owner) == name:
        return []
    return [f"tuned={tuned} is of algo={owner}, and this run has algo={name}; say algo={owner}, or tuned=none"]


def _check_value(name: str, text: str | None, is_sweep: bool, algo: type[AlgoConfig], typed: str | None) -> list[str]:
    key = keys_of(algo).get(name)
    if key is None:
        return problems_of(name, text, algo, typed)
    is_bracketed_sweep = is_sweep and re.fullmatch(r"\[[^\[\]()]*,[^\[\]()]*\]", text or "")
    if text is None or "{" in text or (is_sweep and re.search(r"[,(]", text) and not is_bracketed_sweep):
        return []  # each job of a sweep is checked later
    if isinstance(key.type, Group):
        main = f"{name}.{MAIN_KEY[name]}={text}" if name in MAIN_KEY else f"{name}.KEY=VALUE"
        return [f"{name}: is a group of options; say {main}"]
    try:
        value: Any = unquoted(text) if name in TEXTS and text != "null" else yaml.safe_load(text)
    except yaml.YAMLError:
        return []  # Hydra, whose grammar differs from yaml's, will report an error
    lines = problems_of(name, value, algo)
    return [f"{name}: has no value; say {name}=..."] if lines and not text else lines


def _algorithm(command: CommandLine, values: Sequence[re.Match[str]]) -> type[AlgoConfig] | None:
    """Return the Config class of the algorithm that the command line, main config or train.yaml names, if any."""
    name = default_algorithm(command.overrides, command.config_file) or defaults()["algo"]
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
    except UsageError:  # the check of the option, or `build`, will raise the same error
        return None


def check_file(file: Path, group: str, algo: type[AlgoConfig] | None) -> list[str]:
    """Return a line for each problem with the syntax, keys and plain values in an option's yaml file."""
    try:
        text = file.read_text()
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        return [unreadable(file, error)]
    except (OSError, UnicodeDecodeError) as error:
        return [f"{file}: can't be read: {error}"]
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        return [f"{file}:{node.start_mark.line + 1}: must hold key: value"]
    package = PACKAGE.search(text)
    prefix = "" if package and package[1] == "_global_" else f"{package[1] if package else group}."
    algo = algo or config_class(defaults()["algo"])
    keys = keys_of(algo)
    lines, seen = [], dict[str, int]()
    for name, value in _values(node, prefix, keys):
        at = f"{file}:{value.start_mark.line + 1}"
        if name in seen:
            lines.append(f"{at}: {name} is given twice, in line {seen[name]}, too")
        seen[name] = value.start_mark.line + 1
        if name == f"{prefix}defaults" or name.startswith("hydra"):
            continue
        content = yaml.SafeLoader("").construct_object(value, deep=True)
        if content is None and (name in WITH_TUNED or name in SHORT_RUN):  # first_try.py replaces it
            continue
        if name not in keys or (content != MISSING and "${" not in str(content)):
            lines += [f"{at}: {problem}" for problem in problems_of(name, content, algo)]
    is_whole = prefix == f"{group}." and f"{prefix}defaults" not in seen
    if is_whole and group in group_of(Config).keys and group not in ("algo", "replay"):
        needed = [key.name for key in keys.values() if key.group == group]
        if lacking := [name.removeprefix(prefix) for name in needed if name not in seen]:
            model = option_file(group, defaults()[group]) if group != "mode" else None
            it = "them" if len(lacking) > 1 else "it"
            lines.append(f"{file}: lacks {', '.join(lacking)}; copy {it} from {model}")
    return lines


def _values(node: yaml.MappingNode, prefix: str, keys: Mapping[str, Key]) -> Iterator[tuple[str, yaml.Node]]:
    for name_node, value in node.value:
        name = f"{prefix}{name_node.value}"
        takes_any = name in keys and isinstance(keys[name].type, MappingOf)
        if isinstance(value, yaml.MappingNode) and not takes_any and not is_free(name, keys):
            yield from _values(value, f"{name}.", keys)
        else:
            yield name, value
