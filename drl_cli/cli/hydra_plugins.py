"""Two Hydra plugins: `env=` takes any Gymnasium id, and our conf folder is found from any config path."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

GROUP = "env/"


class AnyEnv(ConfigSource):
    """Makes up conf/env/<id>.yaml for every id that has no file."""

    @staticmethod
    def scheme() -> str:
        """The prefix of this source in Hydra's search path."""
        return "anyenv"

    def load_config(self, config_path: str) -> ConfigResult:
        """The same keys as a file in conf/env, with their plain values."""
        if not self.is_config(config_path):
            raise ConfigLoadError(f"no config {config_path}")
        name = config_path.removeprefix(GROUP).removesuffix(".yaml")
        node: dict[str, object] = {
            "name": name,
            "id": name,
            "kwargs": {},
            "max_episode_steps": None,
            "reward_scale": 1.0,
            "frame_stack": "auto",
            "normalize_obs": False,
            "normalize_reward": False,
            "backend": "gymnasium",
            "wrappers": [],
        }
        return ConfigResult(
            provider=self.provider, path="anyenv://", config=OmegaConf.create(node), header={"package": None}
        )

    def available(self) -> bool:
        """It always is."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Only `env`."""
        return config_path in ("", "env")

    def is_config(self, config_path: str) -> bool:
        """Any name in `env`: whether it exists was checked before."""
        return config_path.startswith(GROUP)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Nothing to list: the ids are Gymnasium's."""
        return []


class AnyEnvPath(SearchPathPlugin):
    """Puts AnyEnv behind the conf folder."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append; a file in conf/env comes first."""
        search_path.append("drl-cli", "anyenv://")


def register() -> None:
    """Make both known to Hydra."""
    for plugin in (AnyEnv, AnyEnvPath):
        Plugins.instance().register(plugin)
