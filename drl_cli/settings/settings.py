"""From a plain mapping (yaml) to frozen dataclasses: names, types and ranges checked, all problems at once."""

import dataclasses
import os
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import NotAlgorithm, algorithms, installed, load_algorithm
from drl_cli.errors import USER_CODE, UsageError
from drl_cli.replay.config import SAMPLERS, ReplayConfig
from drl_cli.runtime.config import Config
from drl_cli.settings.conf import options
from drl_cli.settings.synonyms import note, synonym
from drl_cli.utils.outside import ModuleRaised, NotFound
from drl_cli.utils.ranges import NameOrClass, Range
from drl_cli.utils.spelling import did_you_mean, nearest

T = TypeVar("T")

MISSING = "???"
"""What yaml has, by Hydra's rules, where a value must be given and none is known."""


def build(node: Mapping[str, Any]) -> Config:
    """The config of a run; raises UsageError with every problem in it."""
    problems: list[str] = []
    config = convert(dict(node), Config, "", problems, config_class(str(node.get("algo", {}).get("name"))))
    if problems:
        raise UsageError(problems)
    assert isinstance(config, Config)
    return config


def config_class(name: str) -> type[AlgoConfig]:
    """The Config class of an algorithm; raises UsageError where there is none, or its module raised (exit 4)."""
    try:
        kind = load_algorithm(name).Config
    except NotFound as error:
        raise UsageError(unknown_algorithm(name) if name.isidentifier() else str(error)) from error
    except NotAlgorithm as error:
        raise UsageError(str(error)) from error
    except ModuleRaised as error:
        raise UsageError(str(error), USER_CODE) from error
    if name not in algorithms() and (problems := unreadable_fields(kind)):
        raise UsageError([f"{name}: {problem}" for problem in problems])
    return kind


def unknown_algorithm(name: str) -> str:
    """The error line for an algorithm that does not exist."""
    known = [*dict.fromkeys([*options("algo"), *algorithms(), *installed()])]
    hint = did_you_mean(name, known, quote="'")
    return (
        f"unknown algorithm '{name}'.{hint}   available: {', '.join(known)}, or a module to import from {os.getcwd()}"
    )


def unreadable_fields(kind: type[Any]) -> list[str]:
    """A line for each field of a config class whose type no value on a command line can have."""
    try:
        hints = fields(kind)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:  # what a type in quotes can be
        return [f"the types of {kind.__name__} can't be read: {error}"]
    return [
        f"{kind.__name__}.{name} is {hint}; a field can be bool, int, float, str, Literal[...], tuple[X, ...], "
        "Mapping[str, X], a dataclass of these, and X | None"
        for name, hint in hints.items()
        if not _is_readable(hint)
    ]


def _is_readable(kind: Any) -> bool:
    """Whether `convert` knows this type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return len(args) == 2 and _is_readable(args[0])
    if origin in (Union, types.UnionType):
        return all(arm is types.NoneType or _is_readable(arm) for arm in args)
    if origin is tuple:
        return len(args) == 2 and args[1] is ... and _is_readable(args[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return args[1] is Any or _is_readable(args[1])
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return not unreadable_fields(kind)
    return origin is Literal or kind in (bool, int, float, str)


def convert(value: Any, kind: Any, path: str, problems: list[str], algo: type[AlgoConfig]) -> Any:
    """`value` as `kind`, or None with a line in `problems`. Any: yaml holds anything."""
    if kind is AlgoConfig:
        kind = algo
    if kind is ReplayConfig and isinstance(value, Mapping):
        kind = replay_class(value)
        is_another = any(fields(other).keys() == value.keys() for other in SAMPLERS.values())
        if is_another and fields(kind).keys() != value.keys():
            problems.append(f"{path}.sampler: say {path}={value['sampler']}, which brings its options along")
            return None
    origin = get_origin(kind)
    if origin is Annotated:
        base, bounds = get_args(kind)
        result = convert(value, base, path, problems, algo)
        if result is not None and isinstance(bounds, Range | NameOrClass) and result not in bounds:
            problems.append(f"{path}: must be {bounds}, got {value}")
        return result
    if origin in (Union, types.UnionType):
        return _union(value, get_args(kind), path, problems, algo)
    if origin is Literal:
        if isinstance(value, bool) and "on" in get_args(kind):  # what yaml makes of on and off
            value = "on" if value else "off"
        if value in get_args(kind):
            return value
        choices = ", ".join(str(choice) for choice in get_args(kind))
        problems.append(f"{path}: {value!r} is not one of {choices}")
        return None
    if origin is tuple:
        if isinstance(value, list | tuple):
            (item, _) = get_args(kind)
            return tuple(convert(v, item, f"{path}[{i}]", problems, algo) for i, v in enumerate(value))
        hint = f"; say {path}=[{value}]" if isinstance(value, int | float) else ""
        problems.append(f"{path}: must be a list, got {value!r}{hint}")
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(value, kind, path, problems, algo)
    if origin is not None and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            (_, item) = get_args(kind)
            inner = value.items()
            return {key: v if item is Any else convert(v, item, f"{path}.{key}", problems, algo) for key, v in inner}
        problems.append(f"{path}: must be a mapping such as {{a: 1}}, got {value!r}")
        return None
    return _scalar(value, kind, path, problems)


def _union(value: Any, arms: tuple[Any, ...], path: str, problems: list[str], algo: type[AlgoConfig]) -> Any:
    """`value` as the first kind that takes it; where none does, what is wrong inside it, or what each would have."""
    if value is None and type(None) in arms:
        return None
    refusals: list[str] = []
    for arm in arms:
        if arm is not type(None):
            lines: list[str] = []
            result = convert(value, arm, path, lines, algo)
            if not lines:
                return result
            refusals += lines
    inside = [line for line in refusals if not line.startswith(f"{path}: ")]
    problems += inside or [f"{path}: {', or '.join(line.removeprefix(f'{path}: ') for line in refusals)}"]
    return None


def _dataclass(value: Any, kind: type[T], path: str, problems: list[str], algo: type[AlgoConfig]) -> T | None:
    if not isinstance(value, Mapping):
        problems.append(f"{path}: must be a group of options, got {value!r}")
        return None
    hints, earlier = fields(kind), len(problems)
    prefix = f"{path}." if path else ""
    problems += [unknown_key(prefix + str(key), algo) for key in value if key not in hints]
    missing = [name for name in hints if value.get(name, MISSING) == MISSING]
    problems += [f"{prefix}{name}: is missing, say {prefix}{name}=..." for name in missing]
    known = {name: value[name] for name in hints if name not in missing}
    converted = {
        _attribute(name): convert(item, hints[name], prefix + name, problems, algo) for name, item in known.items()
    }
    if len(problems) > earlier:
        return None
    try:
        return kind(**converted)
    except ValueError as error:  # of values that do not go together
        problems.append(str(error) if str(error).startswith(prefix) else f"{path}: {error}")
        return None


def _scalar(value: Any, kind: Any, path: str, problems: list[str]) -> Any:
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value
    number = _number(value)
    if kind is float and number is not None:
        return float(number)
    if kind is int and number is not None and float(number).is_integer():
        return int(number)
    names = {bool: "true or false", str: "text", float: "a number", int: "a whole number"}
    problems.append(f"{path}: must be {names[kind]}, got {value!r}")
    return None


def _number(value: Any) -> int | float | None:
    """A number, also one that yaml leaves as text (1e-3)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if value == value and abs(value) != float("inf") else None
    try:
        return _number(float(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def fields(kind: type[Any]) -> Mapping[str, Any]:
    """Key -> type of a config class, with the names that the user types."""
    if kind not in _fields:
        hints = get_type_hints(kind, include_extras=True)
        _fields[kind] = {field.name.rstrip("_"): hints[field.name] for field in dataclasses.fields(kind)}
    return _fields[kind]


_fields: dict[type[Any], dict[str, Any]] = {}
"""Kept, since reading the types of a class takes 0.1 ms, and `drl-list keys` asks a thousand times."""


def default_values(kind: type[Any]) -> dict[str, Any]:
    """Key -> default of a config class's fields, as yaml has it; MISSING where there is none."""
    values = {}
    for field in dataclasses.fields(kind):
        value = MISSING if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        values[field.name.rstrip("_")] = to_yaml_keys(value)
    return values


def _attribute(name: str) -> str:
    return f"{name}_" if name == "return" else name


def all_keys(algo: type[AlgoConfig], kind: Any = Config, prefix: str = "") -> dict[str, Any]:
    """Every dotted key -> type; groups included, and the options of every sampler."""
    keys: dict[str, Any] = {}
    for name, hint in fields(kind).items():
        hint = algo if hint is AlgoConfig else hint
        keys[prefix + name] = hint
        kinds = tuple(SAMPLERS.values()) if hint is ReplayConfig else (hint,)
        for group in kinds:
            if dataclasses.is_dataclass(group):
                keys = all_keys(algo, group, f"{prefix}{name}.") | keys  # the first sampler that has it says its type
    return keys


def replay_class(node: Mapping[str, Any]) -> type[ReplayConfig]:
    """The class of the sampler that is named; where none is, or an unknown one, of that which has most of the keys."""
    fitting = max(SAMPLERS.values(), key=lambda kind: len(fields(kind).keys() & node.keys()))
    return SAMPLERS.get(str(node.get("sampler")), fitting)


def own_options(kind: type[ReplayConfig]) -> set[str]:
    """Options that a sampler has beside those of every table."""
    return fields(kind).keys() - fields(ReplayConfig).keys()


def unknown_key(path: str, algo: type[AlgoConfig], value: str | None = None) -> str:
    """The error line for a key that does not exist, with the nearest one that does, or the one that other tools mean.

    `value` is what was given for it, where that is known.
    """
    keys = all_keys(algo)
    group, _, name = path.rpartition(".")
    if group in algorithms() and f"algo.{name}" in keys and group == load_name(algo):
        return f"{path}: no such group of options. Did you mean algo.{name}?"
    if group == "replay" and (owners := [sampler for sampler, kind in SAMPLERS.items() if name in own_options(kind)]):
        return f"{path}: only replay={' and replay='.join(owners)} {'has' if len(owners) == 1 else 'have'} this option"
    siblings = {key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == group}
    found = [] if synonym(name, keys) or note(name) else nearest(name, siblings)
    hint = f" Did you mean {group + '.' if group else ''}{found[0]}?" if found else ""
    if not hint:
        same_name = [key for key in keys if key.rpartition(".")[2] == name]
        close = nearest(name, {key.rpartition(".")[2] for key in keys})
        found = same_name or [key for key in keys if close and key.rpartition(".")[2] == close[0]]
        other = synonym(name, keys)
        if other is not None:
            found = [_with_value(other, keys, value)]
        hint = f" Did you mean {', '.join(found[:3])}?" if found else ""
        if not same_name and not other and (advice := note(name)):
            hint = f" For that: {advice}"
        elif same_name and _is_list(keys[same_name[0]]):
            hint = f" Did you mean {_with_value(same_name[0], keys, value)}?"
    if not group:
        return f"{name}: no such option at the top level.{hint}"
    owner = load_name(algo) if group == "algo" else group
    return f"{path}: {owner} has no option '{name}'.{hint}"


def _with_value(key: str, keys: Mapping[str, Any], value: str | None) -> str:
    """The key, with the value where it was none: a number for a list."""
    is_bare = value and _is_list(keys.get(key)) and not value.startswith("[")
    return f"{key}=[{value}]" if is_bare else key


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def load_name(algo: type[AlgoConfig]) -> str:
    """The algorithm that a Config class belongs to."""
    return algo.__module__.rpartition(".")[2]


def to_yaml_keys(value: Any) -> Any:
    """A config as plain mappings with the names that the user types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name.rstrip("_"): to_yaml_keys(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_yaml_keys(item) for item in value]
    return dict(value) if isinstance(value, typing.Mapping) else value
