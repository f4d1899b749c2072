"""The keys of a config: whether a key exists, a value is valid, and how plain mappings become a Config and back."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import load_algorithm
from drl_cli.config.config import Config
from drl_cli.errors import Problems, UsageError
from drl_cli.replay.base import ReplayConfig
from drl_cli.replay.config import SAMPLERS
from drl_cli.settings.algorithm import algorithms_with, built_in_parent, config_class, short_name
from drl_cli.settings.conf import LOADER, bases, conf_dir, defaults, option_file
from drl_cli.settings.value_types import (
    MISSING,
    NO_UNIT,
    Choice,
    Group,
    ListOf,
    MappingOf,
    UnknownKey,
    ValueType,
    cached,
    group_of,
)
from drl_cli.utils.spelling import OFF_POLICY, ON_POLICY, absent, nearest, note, synonyms


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


CLEAR, LIKELY = 0.8, 0.65
"""The similarity from which a key of another group, or of the same group, may be meant. No hint beats a wrong one."""
LAMBDAS = ("algo.gae_lambda", "algo.q_lambda", "algo.td_lambda")
"""The keys by which an algorithm that learns from rollouts sets how many rewards a target uses."""


def judge(key: Key, value: Any, algo: type[AlgoConfig] = AlgoConfig, typed: str | None = None) -> Any:
    """Return the value converted for the config. Raise UsageError with a line for each problem.

    For a wrong key in a group, the error suggests a key of `algo`. `typed` is as in `unknown_key`.
    """
    problems: list[str] = []
    result = key.type.read(value, key.name, problems)
    if problems:
        unknown = (unknown_key(line, algo, typed=typed) if isinstance(line, UnknownKey) else line for line in problems)
        raise UsageError([_in_seconds(line, key, value, algo) + _why_fixed(line, algo, typed) for line in unknown])
    return result


def _in_seconds(line: str, key: Key, value: Any, algo: type[AlgoConfig]) -> str:
    """Return the line with the key that counts seconds, if there is one, for a key of steps that got a time."""
    lines: list[str] = []
    if NO_UNIT in line and (seconds := keys_of(algo).get(f"{key.name}_s")):
        seconds.type.read(value, seconds.name, lines)
    says = [each.partition("; ")[2] for each in lines]
    return f"{line.partition('; ')[0]}; {says[0]}" if any(says) else line


def _why_fixed(line: str, algo: type[AlgoConfig], typed: str | None) -> str:
    """Return why an algorithm that learns from rollouts has a fixed `algo.n_step`, if the line is about this key."""
    keys = keys_of(algo)
    if not (line.startswith("algo.n_step: ") and is_on_policy(keys)):
        return ""
    other = next(key for key in LAMBDAS if key in keys)
    return f", because {typed or short_name(algo)} learns from rollouts; {other} sets how many rewards count"


def is_on_policy(keys: Mapping[str, Key]) -> bool:
    """Return whether an algorithm with these keys learns from rollouts: its option `n_step` can only be 1."""
    return isinstance(keys["algo.n_step"].type, Choice)


def problems_of(name: str, value: Any, algo: type[AlgoConfig], typed: str | None = None) -> list[str]:
    """Return a line for each problem with the key `name` and its value. `typed` is as in `unknown_key`."""
    keys = keys_of(algo)
    if name not in keys:
        return [] if is_free(name, keys) else [unknown_key(name, algo, value, typed)]
    try:
        judge(keys[name], value, algo, typed)
    except UsageError as error:
        return error.problems
    return []


def unknown_key(path: str, algo: type[AlgoConfig], value: Any = None, typed: str | None = None) -> str:
    """Return the error line for a key that does not exist, with the key that the user probably means.

    `value` is the value that the user gave to the key, or None. `typed` is the word after `algo=`, such as the preset
    droq of the algorithm redq, or None for the algorithm's own name.
    """
    keys, of_algo = keys_of(algo), typed or short_name(algo)
    group, _, name = path.rpartition(".")
    if f"algo.{name}" in keys and group in (short_name(algo), of_algo):
        return f"{path}: no such group of options. Did you mean algo.{name}?"
    common = group_of(ReplayConfig).keys
    if group == "replay" and (
        owners := [sampler for sampler, kind in SAMPLERS.items() if name in group_of(kind).keys and name not in common]
    ):
        return f"{path}: only replay={' and replay='.join(owners)} {'has' if len(owners) == 1 else 'have'} this option"
    hint = _hint(group, name, keys, value)
    if not group:
        return f"{name}: no such option at the top level.{hint}"
    owner = of_algo if group == "algo" else group
    return f"{path}: {owner} has no option '{name}'.{hint}"


def _hint(group: str, name: str, keys: Mapping[str, Key], value: Any) -> str:
    """Return a sentence with the key that the user probably means, or with advice, or ''."""
    full = f"{group}.{name}" if group else name
    excluded = OFF_POLICY if is_on_policy(keys) else ON_POLICY
    mappings = [key for key, each in keys.items() if isinstance(each.type, MappingOf)]
    if "." in group and (found := nearest(group, mappings, cutoff=CLEAR)):  # env.kwarg.target
        return f" Did you mean {found[0]}.{name}?"
    advice, others = note(full), [key for key in synonyms(full, keys) if key not in excluded]
    others.sort(key=lambda key: key not in ON_POLICY)
    siblings = [_last(key) for key, each in keys.items() if each.group == group]
    if not (others or advice) and (found := nearest(name, siblings, cutoff=CLEAR)):
        return f" Did you mean {group + '.' if group else ''}{found[0]}?"
    same_name = [key for key in keys if _last(key) == name and key not in excluded]
    same_name = [key for key in same_name if not key.startswith("reward.")] or same_name  # a module is seldom meant
    if others:
        return f" Did you mean {', '.join(_with_value(other, keys, value) for other in others)}?"
    if advice:
        return f" For that: {advice}"
    if same_name:
        return f" Did you mean {', '.join([_with_value(same_name[0], keys, value), *same_name[1:3]])}?"
    if group in ("", "algo"):
        for option in [_last(key) for key in absent(full)] or [name]:
            if owners := algorithms_with(option):
                it = "It is" if option == name else f"For that: algo.{option},"
                return f" {it} an option of algo={', '.join(owners)}"
    if found := nearest(name, siblings, cutoff=LIKELY):
        return f" Did you mean {group + '.' if group else ''}{found[0]}?"
    close = nearest(name, map(_last, keys), cutoff=CLEAR)
    found = [key for key in keys if close and _last(key) == close[0]]
    return f" Did you mean {', '.join(found[:3])}?" if found else ""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _with_value(name: str, keys: Mapping[str, Key], value: Any) -> str:
    """Return the name of a key, or `name=[value]` if the key takes a list and `value` lacks brackets."""
    is_bare = name in keys and isinstance(keys[name].type, ListOf) and value and not str(value).startswith("[")
    return f"{name}=[{value}]" if is_bare else name


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
