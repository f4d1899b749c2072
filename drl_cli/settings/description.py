"""Describe each key by a `Key`. `default` and `help` are set only if the yaml files were read."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from drl_cli.algos.base import AlgoConfig
from drl_cli.replay.base_config import ReplayConfig
from drl_cli.replay.config import SAMPLERS
from drl_cli.runtime.config import Config
from drl_cli.settings.value_types import Group, MappingOf, ValueType, cached, group_of


@dataclass(frozen=True)
class Key:
    """A key: its dotted name, the type of its value, and its default and comment from an option's yaml."""

    name: str
    type: ValueType
    default: str = ""
    help: str = ""

    @property
    def group(self) -> str:
        return self.name.rpartition(".")[0]


def config_group(algo: type[AlgoConfig]) -> Group:
    """Return the whole config as a group, with the options of this algorithm."""
    config = group_of(Config)
    return dataclasses.replace(config, keys={**config.keys, "algo": group_of(algo)})


@cached
def keys_of(algo: type[AlgoConfig]) -> Mapping[str, Key]:
    """Return every key of a run with this algorithm, by name. Include groups and the keys of all samplers."""
    return {key.name: key for key in _keys(config_group(algo), "")}


def _keys(group: Group, prefix: str) -> list[Key]:
    found = []
    for name, kind in group.keys.items():
        found.append(Key(prefix + name, kind))
        is_replay = isinstance(kind, Group) and kind.config_class is ReplayConfig
        # in reverse order, so that the first sampler's type is kept if several samplers have the same key
        groups = [group_of(sampler) for sampler in reversed([*SAMPLERS.values()])] if is_replay else [kind]
        found += [key for each in groups if isinstance(each, Group) for key in _keys(each, f"{prefix}{name}.")]
    return found


def is_free(name: str, keys: Mapping[str, Key]) -> bool:
    """Return whether a name lies below a mapping that accepts any key, such as env.kwargs."""
    above = name.rpartition(".")[0]
    return bool(above) and ((above in keys and isinstance(keys[above].type, MappingOf)) or is_free(above, keys))
