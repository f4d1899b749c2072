"""explain=true: every value of a run with the layer that set it. Layers are read again in the order of Hydra's."""

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

from drl_cli.runtime.config import Config
from drl_cli.settings.build import to_yaml_keys
from drl_cli.settings.command_line import OVERRIDE
from drl_cli.settings.conf import LOADER, algorithm_yaml, conf_dir
from drl_cli.settings.description import keys_of
from drl_cli.settings.fill import fill
from drl_cli.settings.value_types import Group

GROUP_LAYERS = ("mode", "algo", "tuned", "experiment")
"""Groups whose files are layers of their own; what the files of the others say is the layer `default`."""

YOURS, RUN, TYPED = "your yaml", "run", "command line"


@dataclass(frozen=True)
class Layer:
    """One file, or the command line: the values that it sets and the options of groups that it chooses, by key.

    A key of `values` may be a group: all in it are set, to what the file does not say.
    """

    name: str
    source: str
    values: Mapping[str, Any]
    choices: Mapping[str, str]

    def sets(self, key: str) -> bool:
        """Whether it sets a key, a part of it, or all around it."""
        return any(_is_within(key, path) or _is_within(path, key) for path in self.values)


@dataclass(frozen=True)
class Setting:
    """A key, its value as it can be typed, and the last layer that set it, with what it set."""

    key: str
    value: str
    layer: str
    source: str

    @property
    def group(self) -> str:
        """What it stands with: the chosen options, the top level, or the group of its key."""
        return "=" if self.key.endswith("=") else self.key.rpartition(".")[0]


def explanation(config: Config) -> list[str]:
    """Lines for a config, within the Hydra job that composed it: groups apart, columns two spaces or more apart."""
    layers = job_layers()
    rows = [*chosen_options(layers, _choices()), *settings(config, layers)]
    cells = [(row.key, row.value, row.layer) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines, group = [], rows[0].group
    for row, cell in zip(rows, cells, strict=True):
        lines += [""] if row.group != group else []
        lines.append("  ".join([*map(str.ljust, cell, widths), row.source]).rstrip())
        group = row.group
    return lines


def chosen_options(layers: Sequence[Layer], choices: Mapping[str, str]) -> Iterator[Setting]:
    """The option of each group of which there are several."""
    for group, option in choices.items():
        if option != "default":
            *_, last = (layer for layer in layers if group in layer.choices)
            yield Setting(f"{group}=", option, last.name, last.source)


def settings(config: Config, layers: Sequence[Layer]) -> Iterator[Setting]:
    """Every key."""
    derived = _derived(config)
    ends = {key.name for key in keys_of(type(config.algo)).values() if not isinstance(key.type, Group)}
    for key, value in _leaves(to_yaml_keys(config), ends):
        setting = [layer for layer in layers if layer.sets(key)]
        source = setting[-1].source + (f"; here {_shown(derived[key])}" if key in derived else "")
        if len(setting) > 1 and setting[-1].name == TYPED and key in setting[-2].values:
            source = f"was {_shown(setting[-2].values[key])} ({setting[-2].name}, {setting[-2].source})"
        yield Setting(key, _shown(value), setting[-1].name, source)


def job_layers() -> list[Layer]:
    """Those of the Hydra job that is running, the weakest first."""
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
    return [*layers, _typed(job.overrides.task, job.runtime.choices)]


def tuned_line(plain: Mapping[str, Any]) -> str | None:
    """`tuned sac-Pendulum-v1: 13 values`, those of the set that hold; None without one. Within a Hydra job."""
    option = _choices().get("tuned")
    if option is None:
        return None
    values, have = _tuned_values(option), dict(_leaves(plain))
    holding = sum(have.get(key) == value for key, value in values.items())
    return f"tuned {option}: {holding} value{'s' * (holding > 1)}" if holding else None


def _tuned_values(option: str) -> dict[str, Any]:
    """Of a set's yaml and of those that it builds on, by key."""
    file = _file(f"tuned/{option}")
    node: Any = {} if file is None else OmegaConf.to_container(OmegaConf.load(file))
    bases = [base for base in node.pop("defaults", ()) if isinstance(base, str) and base != "_self_"]
    return {key: value for base in bases for key, value in _tuned_values(base).items()} | dict(_leaves(node))


def _choices() -> dict[str, str]:
    """The chosen option of each group; a tuned set that does not exist is none."""
    job = HydraConfig.get()
    choices = {str(group): str(name) for group, name in job.runtime.choices.items() if not group.startswith("hydra/")}
    if _file(f"tuned/{choices.get('tuned')}") is None:
        choices.pop("tuned", None)
    return dict(sorted(choices.items()))


def _file(path: str) -> Path | None:
    """The yaml that Hydra takes for `group/option`; None where there is none."""
    sources = HydraConfig.get().runtime.config_sources
    files = (Path(source.path) / f"{path}.yaml" for source in sources if source.schema == "file")
    return next((file for file in files if file.is_file()), None)


def _file_layers(path: str, package: str) -> Iterator[Layer]:
    """A config that Hydra has taken: a file, or made up for an environment, an algorithm or a network of the user's."""
    group, _, option = path.partition("/")
    name = group if group in GROUP_LAYERS else "default"
    file = _file(path)
    if file is None:
        yield Layer(name, path.replace("/", "=", 1), {group: None}, {})
        file = algorithm_yaml(option) if group == "algo" else None
    if file is None:
        return
    node = yaml.load(file.read_text(), LOADER) or {}
    chosen = [entry for entry in node.pop("defaults", []) if isinstance(entry, dict)]
    choices = {str(key).split()[-1].lstrip("/"): str(value) for entry in chosen for key, value in entry.items()}
    if not file.is_relative_to(conf_dir()):
        name = RUN if (file.parent / "run.json").is_file() else YOURS
    source = f"conf/{file.relative_to(conf_dir())}" if name not in (RUN, YOURS) else os.path.relpath(file)
    yield Layer(name, source, dict(_leaves(node, prefix=f"{package}." if package else "")), choices)


def _typed(overrides: Sequence[str], groups: Container[str]) -> Layer:
    """The command line."""
    matches = [match for arg in overrides if (match := OVERRIDE.fullmatch(arg))]
    typed = {match["key"]: match["value"] for match in matches}
    choices = {key: value for key, value in typed.items() if key in groups}
    return Layer(TYPED, "", {key: value for key, value in typed.items() if key not in groups}, choices)


def _leaves(node: Any, ends: Container[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key -> value of nested mappings; one that is empty, or whose key is in `ends`, is a value."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value and prefix + name not in ends:
            yield from _leaves(value, ends, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _derived(config: Config) -> dict[str, Any]:
    """What null and auto come out as on this machine, where that is known before the start."""
    if config.ray.address is not None:
        return {}
    here = fill(dataclasses.replace(config, load_weights=None))
    found = {
        "worker.num": here.num_workers,
        "worker.proxies": here.num_proxies,
        "worker.block_rows": here.block_rows,
        "worker.random_steps": dataclasses.replace(here, load_weights=config.load_weights).random_steps,
        "trainer.updates_per_call": here.updates_per_call,
        "replay.shards": here.num_shards,
    }
    asked = dict(_leaves(to_yaml_keys(config)))
    return {key: value for key, value in found.items() if asked[key] in (None, "auto")}


def _is_within(key: str, path: str) -> bool:
    return f"{key}.".startswith(f"{path}.")


def _shown(value: Any) -> str:
    """A value as it can be typed. Any: of any key."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_shown(item)}' for key, item in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
