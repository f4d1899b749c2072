"""Convert plain mappings, as read from yaml, to the frozen dataclasses of a config, and back."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import yaml

from drl_cli.algos.lookup import load_algorithm
from drl_cli.errors import Problems, UsageError
from drl_cli.replay.config import SAMPLERS
from drl_cli.runtime.config import Config
from drl_cli.settings.algorithm import built_in_parent, config_class, short_name
from drl_cli.settings.conf import LOADER, bases, conf_dir, defaults, option_file
from drl_cli.settings.judge import Key, config_group, judge
from drl_cli.settings.value_types import MISSING, Group, group_of


def build(node: Mapping[str, Any]) -> Config:
    """Return the config of a run. Raise UsageError with every problem in `node`."""
    algo = config_class(str(node.get("algo", {}).get("name")))
    problems, config = Problems(), None
    if lacking := _lacking(node):
        algo_node, replay = node["algo"], node["replay"]
        node = {**node, "replay": {key: value for key, value in replay.items() if key not in lacking}}
        with problems.collect():
            raise UsageError(_needs(algo_node, replay["sampler"], lacking))
    with problems.collect():
        config = judge(Key("", config_group(algo)), node, algo, node["algo"].get("preset"))
    problems.report()
    assert isinstance(config, Config)
    return config


def _lacking(node: Mapping[str, Any]) -> list[str]:
    """Return the keys of `replay` that the algorithm's yaml sets and that the chosen sampler does not have."""
    algo, replay = node.get("algo"), node.get("replay")
    if not (isinstance(algo, Mapping) and isinstance(replay, Mapping) and replay.get("sampler") in SAMPLERS):
        return []
    own = option_values("algo", str(algo.get("preset") or algo.get("name"))).get("replay")
    has = group_of(SAMPLERS[replay["sampler"]]).keys
    return [key for key in own if key in replay and key not in has] if isinstance(own, Mapping) else []


def _needs(algo: Mapping[str, Any], sampler: str, keys: Collection[str]) -> str:
    """Return the error line for an algorithm whose yaml sets keys that the chosen sampler does not have."""
    fits = [
        name
        for name in load_algorithm(str(algo["name"])).TABLES
        if group_of(SAMPLERS.get(name, SAMPLERS["uniform"])).keys.keys() >= {*keys}
    ]
    names = " and ".join(f"replay.{key}" for key in keys)
    advice = f"; say replay={fits[0]}" if fits else ""
    return (
        f"algo={algo.get('preset') or algo['name']} needs {names}, which replay.sampler={sampler} does not have{advice}"
    )


def with_new_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run of an earlier version, with the default values of the keys that were added since."""
    own = yaml.load((conf_dir() / "train.yaml").read_text(), LOADER)
    filled = {**{key: value for key, value in own.items() if key != "defaults"}, **node}
    groups = {name for name, kind in group_of(Config).keys.items() if isinstance(kind, Group)}
    for name, option in {**defaults(), "env": "LunarLander"}.items():
        group = filled.get(name)
        if name in groups and name != "algo" and isinstance(group, Mapping):
            option = str(group.get("sampler", option)) if name == "replay" else option
            filled[name] = {**option_values(name, option), **group}
    algo = filled.get("algo")
    if isinstance(algo, Mapping):
        values = default_values(config_class(str(algo.get("name"))))
        filled["algo"] = {**{key: value for key, value in values.items() if value != MISSING}, **algo}
    return filled


def option_values(group: str, option: str) -> dict[str, Any]:
    """Return the values in an option's yaml and in the files that it extends; none if there is no such option.

    Raise UsageError if the file has no options.
    """
    file = option_file(group, option)
    node = yaml.load(file.read_text(), LOADER) if file is not None else {}
    if not isinstance(node, Mapping):
        raise UsageError(f"{file}: holds no options")
    inherited = {key: value for base in bases(node) for key, value in option_values(group, base).items()}
    return inherited | {key: value for key, value in node.items() if key != "defaults"}


def default_values(kind: type[Any]) -> dict[str, Any]:
    """Return the default of each key of a config class as a yaml value, or MISSING if the key has no default.

    A key of a built-in algorithm, or of a class derived from its Config, has its default in the algorithm's yaml.
    """
    parent, values = built_in_parent(kind), {}
    node = option_values("algo", short_name(parent)) if parent else {}
    node = node.get("algo", node)
    inherited = {field.name: field.default for field in dataclasses.fields(parent)} if parent else {}
    for field in dataclasses.fields(kind):
        value = MISSING if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        key = field.name.rstrip("_")
        is_in_yaml = key in node and field.default is inherited.get(field.name)
        values[key] = node[key] if is_in_yaml else to_yaml_keys(value)
    return values


def to_yaml_keys(value: Any) -> Any:
    """Return a config as plain mappings, with keys as the user types them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name.rstrip("_"): to_yaml_keys(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_yaml_keys(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def as_typed(value: Any) -> str:
    """Format a config value as the user would type it: null, true, 0.001, [64,64], {g:5}."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_typed, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{as_typed(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def is_within(key: str, names: Iterable[str]) -> bool:
    """Return whether a dotted key is one of `names`, or lies in a group in `names`."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)
