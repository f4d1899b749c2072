"""Hydra plugins: one creates options that have no yaml file, one sets the folders with yaml files.

`env=` accepts any Gymnasium id, `algo=` any module with an algorithm, `network=` and `reward=` any
`my_pkg.my_module:Class`, `tuned=` any section of a file in conf/tuned.
"""

from collections.abc import Mapping

import yaml
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drl_cli.algos.lookup import load_algorithm
from drl_cli.settings.build import default_values
from drl_cli.settings.conf import algorithm_yaml, conf_dir, defaults, option_text, own_dirs, tuned_section
from drl_cli.settings.env_names import env_options

CLASSES = {"network": "torso", "reward": "name"}
"""The groups whose option may be a class of the user, and the key that has the class."""


class Outside(ConfigSource):
    """Create options that have no file of their own in conf/. `check` has checked their names."""

    @staticmethod
    def scheme() -> str:
        return "outside"

    def load_config(self, config_path: str) -> ConfigResult:
        if not self.is_config(config_path):
            raise ConfigLoadError(f"no config {config_path}")
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        node: DictConfig | ListConfig
        header: dict[str, str | None] = {"package": None}
        if group == "algo":
            node, header = with_groups(*algorithm_options(name), chosen_groups(name))
        elif group == "env":
            node = OmegaConf.create(env_options(name))
        elif group == "tuned":
            node = OmegaConf.create(option_text(group, name) or "")
            header = {"package": "_global_"}
        else:  # the default option with the class `my_pkg.my_module:Class`
            plain = yaml.safe_load((conf_dir() / group / f"{defaults()[group]}.yaml").read_text())
            node = OmegaConf.create({**plain, CLASSES[group]: name})
        return ConfigResult(provider=self.provider, path="outside://", config=node, header=header)

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", "env", "algo", "tuned", *CLASSES)

    def is_config(self, config_path: str) -> bool:
        """Return whether the plugin can create this option."""
        group, _, name = config_path.partition("/")
        is_section = group == "tuned" and tuned_section(name) is not None
        return is_section or group in ("env", "algo") or (group in CLASSES and ":" in name)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


class OutsidePath(SearchPathPlugin):
    """Put the user's folders at the front of Hydra's search path, and conf/ and `Outside` at the end."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in reversed(own_dirs):
            search_path.prepend("own", f"file://{folder}", SearchPathQuery(provider="main"))
        search_path.append("conf", f"file://{conf_dir()}")
        search_path.append("drl-cli", "outside://")


def register() -> None:
    """Register the plugins with Hydra."""
    for plugin in (Outside, OutsidePath):
        Plugins.instance().register(plugin)


def chosen_groups(name: str) -> dict[str, str]:
    """Return the options of other groups that a user's algorithm needs: its first table if it can't use the default."""
    tables = load_algorithm(name).TABLES
    return {} if defaults()["replay"] in tables else {"replay": tables[0]}


def with_groups(
    node: DictConfig, header: dict[str, str | None], chosen: Mapping[str, str]
) -> tuple[DictConfig, dict[str, str | None]]:
    """Return the options of an algorithm, which also choose options of other groups, unless their yaml does so."""
    entries = list(node.get("defaults", []))
    is_global = header["package"] == "_global_"
    if not chosen or (entries and not is_global) or any("/replay" in str(entry) for entry in entries):
        return node, header
    choices = [*entries, *({f"override /{group}": option} for group, option in chosen.items())]
    merged = OmegaConf.merge(node if is_global else {"algo": node}, {"defaults": choices})
    assert isinstance(merged, DictConfig)
    return merged, {**header, "package": "_global_"}


def algorithm_options(name: str) -> tuple[DictConfig, dict[str, str | None]]:
    """Return the values for a user's algorithm and the header of its yaml. The yaml overrides the Config's defaults."""
    ours = {**default_values(load_algorithm(name).Config), "name": name}
    file = algorithm_yaml(name)
    if file is None:
        return OmegaConf.create(ours), {"package": None}
    try:
        node, header = OmegaConf.load(file), ConfigSource._get_header_dict(file.read_text())
        if header["package"] == "_global_":  # the yaml has full names of keys, and may set keys of any group
            merged = OmegaConf.merge({"algo": ours}, node, {"algo": {"name": name}})
        else:
            merged = OmegaConf.merge(ours, node, {"name": name})
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, OSError) as error:
        raise HydraException(f"{file}: not readable: {' '.join(str(error).split())}") from error
    assert isinstance(merged, DictConfig)
    return merged, header
