"""Convert plain mappings, as read from yaml, to the frozen dataclasses of a config, and back."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from drl_cli.runtime.config import Config
from drl_cli.settings.algorithm import config_class
from drl_cli.settings.description import Key, config_group
from drl_cli.settings.judge import judge
from drl_cli.settings.value_types import MISSING


def build(node: Mapping[str, Any]) -> Config:
    """Return the config of a run. Raise UsageError with every problem in `node`."""
    algo = config_class(str(node.get("algo", {}).get("name")))
    config = judge(Key("", config_group(algo)), node, algo)
    assert isinstance(config, Config)
    return config


def default_values(kind: type[Any]) -> dict[str, Any]:
    """Return the default of each key of a config class as a yaml value, or MISSING if the key has no default."""
    values = {}
    for field in dataclasses.fields(kind):
        value = MISSING if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        values[field.name.rstrip("_")] = to_yaml_keys(value)
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
