"""`explain=true`: list every value of a run with the layer that set the value. Layers are read in Hydra's order."""

import dataclasses
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from drl_cli.algos.lookup import ACTIONS
from drl_cli.config.config import Config
from drl_cli.settings.algorithm import DEFAULT_ALGORITHMS
from drl_cli.settings.build import as_typed, build, is_within, keys_of, to_yaml_keys
from drl_cli.settings.command_line import OVERRIDE
from drl_cli.settings.conf import LOADER, algorithm_yaml, bases, conf_dir, defaults, option_text, tuned_section
from drl_cli.settings.env_names import typed_values
from drl_cli.settings.fill import fill, measure, short_warm_up, with_short_warm_up
from drl_cli.settings.first_try import first_try_line
from drl_cli.settings.hydra_plugins import chosen_groups
from drl_cli.settings.value_types import Group
from drl_cli.utils.hydra_grammar import unquoted

GROUP_LAYERS = ("mode", "algo", "tuned", "experiment")
"""Groups whose files are a layer with the group's name. Files of other groups belong to the layer `default`."""

YOURS, RUN, TYPED = "your yaml", "run", "command line"


@dataclass(frozen=True)
class Layer:
    """A source of values: a file or the command line. `choices` are the options of groups that the layer chooses.

    `values` are the values that the layer sets. If a key is a group, the layer sets all keys in the group.
    """

    name: str
    source: str
    values: Mapping[str, Any]
    choices: Mapping[str, str]

    def sets(self, key: str) -> bool:
        """Return whether the layer sets the key, an entry below the key, or the key's whole group."""
        return any(is_within(key, [path]) or is_within(path, [key]) for path in self.values)


Row = tuple[str, str, str, str]
"""A key or `group=`, the value as the user types it, the last layer that set it, and that layer's file or a note."""


def explanation(config: Config, typed: Sequence[str]) -> list[str]:
    """Return the lines, in columns, that explain=true prints for the config of the running Hydra job.

    `typed` are the words that the user typed. The job has further overrides if the environment chooses options, and
    has the chosen algorithm in place of `algo=auto`.
    """
    layers = job_layers(typed)
    rows = list[Row]()
    for group, option in _choices().items():
        if option != "default":  # a group with several options
            *_, last = (layer for layer in layers if group in layer.choices)
            rows.append((f"{group}=", option, last.name, last.source))
    rows += settings(config, layers, typed)
    widths = [max(map(len, column)) for column in zip(*(row[:3] for row in rows), strict=True)]
    return ["  ".join([*map(str.ljust, cells, widths), source]).rstrip() for *cells, source in rows]


def settings(config: Config, layers: Sequence[Layer], typed: Sequence[str] = ()) -> Iterator[Row]:
    """Yield a row for each key. `typed` are the overrides that the user typed."""
    before, (config, _) = _values(config), with_short_warm_up(config, typed)
    derived = _derived(config)
    for key, value in _values(config).items():
        *earlier, last = (layer for layer in layers if layer.sets(key))
        source = last.source
        if earlier and last.name == TYPED and key in earlier[-1].values:
            source = f"was {as_typed(earlier[-1].values[key])} ({earlier[-1].name}, {earlier[-1].source})"
        source = "; ".join(filter(None, [source, f"here {as_typed(derived[key])}" if key in derived else ""]))
        if value != before[key]:
            source = f"{source}: {as_typed(before[key])}, shortened to {measure(config)}"
        yield key, as_typed(value), last.name, source


def job_layers(typed: Sequence[str]) -> list[Layer]:
    """Return the layers of the running Hydra job. Later layers override earlier layers.

    `typed` are the words that the user typed.
    """
    job = HydraConfig.get()
    overrides = [*job.overrides.hydra, *job.overrides.task]
    loader = GlobalHydra.instance().config_loader()
    files = loader.compute_defaults_list(job.job.config_name, overrides, RunMode.RUN).defaults
    layers = [
        layer
        for file in files
        if file.config_path is not None and not file.config_path.startswith("hydra")
        for layer in _file_layers(file.config_path, file.package or "")
    ]
    matches = [match for arg in job.overrides.task if (match := OVERRIDE.fullmatch(arg))]
    given = {match["key"]: match["value"] for match in matches}
    choices = {key: value for key, value in given.items() if key in job.runtime.choices}
    values = {key: given[key] for key in given if key not in choices}
    by_env, source = sorted(choices.keys() - typed_values(typed).keys()), f"env={job.runtime.choices.get('env')}"
    for group in by_env:  # the environment's action space or family (mujoco, images) chose this option
        option = choices.pop(group)
        layers.append(
            Layer("action space" if group == "algo" else option.rpartition("-")[2], source, {}, {group: option})
        )
    if unquoted(typed_values(typed).get("algo", "")) == "auto":  # the job's override has the chosen algorithm
        layers.append(Layer("auto", "algo=auto, command line", {}, {"algo": choices.pop("algo")}))
    if "name" in values and "name" not in typed_values(typed):
        layers.append(Layer("from_config", "a new run has no name", {"name": values.pop("name")}, {}))
    return [*layers, Layer(TYPED, "", values, choices)]


def algorithm_line(overrides: Sequence[str]) -> str | None:
    """Return a line that names the default algorithm of the Hydra job, or None if `overrides` choose the algorithm."""
    job = HydraConfig.get()
    name, is_by_space = job.runtime.choices.get("algo"), any(arg.startswith("algo=") for arg in job.overrides.task)
    if "algo" in typed_values(overrides) or not (is_by_space or name == defaults()["algo"]):
        return None
    kind = next(kind for kind, algo in {**DEFAULT_ALGORITHMS, "box": defaults()["algo"]}.items() if algo == name)
    return f"algo={name} by default for {ACTIONS[kind]} actions"


def tuned_line(plain: Mapping[str, Any], typed: Sequence[str] = ()) -> str | None:
    """Return a line such as `tuned sac-Pendulum-v1: 13 values`, or what was chosen without tuned values.

    `typed` are the words that the user typed. The line is None if neither chose a value. Count only the values that the
    run uses: not those that the user's values or a shortened warm-up replace.
    """
    option = _choices().get("tuned", "none")
    if option == "none":
        return first_try_line(plain, typed)
    values, have = _tuned_values(option), _flat(plain) | short_warm_up(build(plain), ())
    holding = sum(have.get(key) == value for key, value in values.items())
    return f"tuned {option}: {holding} value{'s' * (holding > 1)}" if holding else None


def _tuned_values(option: str) -> dict[str, Any]:
    node: Any = OmegaConf.to_container(OmegaConf.create(option_text("tuned", option) or ""))
    inherited = {key: value for base in bases(node) for key, value in _tuned_values(base).items()}
    return inherited | _flat({name: value for name, value in node.items() if name != "defaults"})


def _choices() -> dict[str, str]:
    """Return the chosen option of each group. Leave `tuned` out if its option does not exist."""
    job = HydraConfig.get()
    choices = {str(group): str(name) for group, name in job.runtime.choices.items() if not group.startswith("hydra/")}
    if option_text("tuned", str(choices.get("tuned"))) is None:
        choices.pop("tuned", None)
    return dict(sorted(choices.items()))


def _file(path: str) -> Path | None:
    sources = HydraConfig.get().runtime.config_sources
    files = (Path(source.path) / f"{path}.yaml" for source in sources if source.schema == "file")
    return next((file for file in files if file.is_file()), None)


def _file_layers(path: str, package: str) -> Iterator[Layer]:
    """Yield the layer of a config file or section. If `Outside` creates the option, first yield a layer for it."""
    group, _, option = path.partition("/")
    name = group if group in GROUP_LAYERS else "default"
    file, section = _file(path), tuned_section(option) if group == "tuned" else None
    if file is None and section is not None:
        yield _layer(name, package, *section)
        return
    if file is None:
        choices = chosen_groups(option) if group == "algo" else {}
        yield Layer(name, path.replace("/", "=", 1), {group: None}, choices)
        file = algorithm_yaml(option) if group == "algo" else None
    if file is None:
        return
    if not file.is_relative_to(conf_dir()):
        name = RUN if (file.parent / "run.json").is_file() else YOURS
    source = f"conf/{file.relative_to(conf_dir())}" if name not in (RUN, YOURS) else os.path.relpath(file)
    yield _layer(name, package, source, file.read_text())


def _layer(name: str, package: str, source: str, text: str) -> Layer:
    """Return the layer of a yaml's text, whose values belong in `package`."""
    node = yaml.load(text, LOADER) or {}
    chosen = [entry for entry in node.pop("defaults", []) if isinstance(entry, dict)]
    choices = {str(key).split()[-1].lstrip("/"): str(value) for entry in chosen for key, value in entry.items()}
    return Layer(name, source, _flat(node, prefix=f"{package}." if package else ""), choices)


def _values(config: Config) -> dict[str, Any]:
    keys = keys_of(type(config.algo)).values()
    return _flat(to_yaml_keys(config), {key.name for key in keys if not isinstance(key.type, Group)})


def _flat(node: Mapping[str, Any], ends: Container[str] = (), prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key. Treat empty mappings and the keys in `ends` as values."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        goes_deeper = isinstance(value, Mapping) and value and prefix + name not in ends
        found |= _flat(value, ends, f"{prefix}{name}.") if goes_deeper else {prefix + name: value}
    return found


def _derived(config: Config) -> dict[str, Any]:
    """Return the values that replace null and auto on this machine, as far as they are known before the run starts."""
    if config.ray.address is not None:
        return {}
    here = fill(dataclasses.replace(config, load_weights=None))
    found = {
        "worker.num": here.num_workers,
        "worker.proxies": here.worker.num_proxies,
        "worker.block_rows": here.block_rows,
        "worker.random_steps": dataclasses.replace(here, load_weights=config.load_weights).random_steps,
        "orchestrator.min_inserts": here.min_inserts,
        "orchestrator.sample_load_ratio": here.sample_load_ratio,
        "trainer.threads": here.trainer.num_threads,
        "trainer.updates_per_call": here.updates_per_call,
        "replay.shards": here.num_shards,
        "replay.max_staleness": getattr(here.replay, "max_staleness", None),
    }
    values = _values(config)
    return {key: value for key, value in found.items() if values.get(key, 0) in (None, "auto")}
