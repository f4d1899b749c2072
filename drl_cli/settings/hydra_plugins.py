"""Two Hydra plugins: groups take options from outside conf, and our conf folder is found from any config path.

`env=` takes any Gymnasium id, `algo=` any module with an algorithm, `network=` any `my_pkg.my_module:Class`.
"""

import yaml
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drl_cli.algos.lookup import load_algorithm
from drl_cli.settings.build import default_values
from drl_cli.settings.conf import algorithm_yaml, conf_dir, default, own_dirs

GLOBAL = "_global_"  # the package of a yaml that says what it prefers of other groups


class Outside(ConfigSource):
    """Makes up conf/env/<name>.yaml, conf/algo/<name>.yaml and conf/network/<name>.yaml where there is no file."""

    @staticmethod
    def scheme() -> str:
        """The prefix of this source in Hydra's search path."""
        return "outside"

    def load_config(self, config_path: str) -> ConfigResult:
        """The same keys as a file in conf; a user's algorithm may come with a yaml of its own."""
        if not self.is_config(config_path):
            raise ConfigLoadError(f"no config {config_path}")
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        header: dict[str, str | None] = {"package": None}
        if group == "algo":
            node, header = algorithm_options(name)
        else:
            node = OmegaConf.create(env_options(name) if group == "env" else network_options(name))
        return ConfigResult(provider=self.provider, path="outside://", config=node, header=header)

    def available(self) -> bool:
        """It always is."""
        return True

    def is_group(self, config_path: str) -> bool:
        """The groups that take options from outside."""
        return config_path in ("", "env", "algo", "network")

    def is_config(self, config_path: str) -> bool:
        """Any name of `env` and `algo`, and a class for `network`: whether it exists was checked before."""
        group, _, name = config_path.partition("/")
        return group in ("env", "algo") or (group == "network" and ":" in name)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Nothing to list: nobody knows what can be imported."""
        return []


class OutsidePath(SearchPathPlugin):
    """Puts the user's folders before the main one, conf behind it where that is another, and Outside last."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """A file in one of the user's folders comes first."""
        for folder in reversed(own_dirs):
            search_path.prepend("own", f"file://{folder}", SearchPathQuery(provider="main"))
        search_path.append("conf", f"file://{conf_dir()}")
        search_path.append("drl-cli", "outside://")


def register() -> None:
    """Make both known to Hydra."""
    for plugin in (Outside, OutsidePath):
        Plugins.instance().register(plugin)


def env_options(name: str) -> dict[str, object]:
    """Those of a file in conf/env, with their plain values; an Atari game has those of Pong."""
    if name.startswith("ALE/"):
        pong = yaml.safe_load((conf_dir() / "env" / "Pong.yaml").read_text())
        return {**pong, "name": name, "id": name}
    return {
        "name": name,
        "id": name,
        "kwargs": {},
        "max_episode_steps": None,
        "reward_clip": None,
        "reward_scale": 1.0,
        "frame_stack": "auto",
        "normalize_obs": False,
        "normalize_reward": False,
        "backend": "gymnasium",
        "wrappers": [],
    }


def network_options(path: str) -> dict[str, object]:
    """Those of the network that is the default, with the torso `my_pkg.my_module:Class`."""
    plain = yaml.safe_load((conf_dir() / "network" / f"{default('network')}.yaml").read_text())
    return {**plain, "torso": path}


def algorithm_options(name: str) -> tuple[DictConfig, dict[str, str | None]]:
    """The defaults of a user's Config, overridden by its yaml where there is one; and the yaml's header."""
    ours = {**default_values(load_algorithm(name).Config), "name": name}
    file = algorithm_yaml(name)
    if file is None:
        return OmegaConf.create(ours), {"package": None}
    try:
        node, header = OmegaConf.load(file), ConfigSource._get_header_dict(file.read_text())
        if header["package"] == GLOBAL:
            merged = OmegaConf.merge({"algo": ours}, node, {"algo": {"name": name}})
        else:
            merged = OmegaConf.merge(ours, node, {"name": name})
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, OSError) as error:
        raise HydraException(f"{file}: not readable: {' '.join(str(error).split())}") from error
    assert isinstance(merged, DictConfig)
    return merged, header
