"""The config of a drl-train command line, for the parts that a benchmark builds itself."""

from drl_cli.runtime.config import Config


def compose(*overrides: str) -> Config:
    """Composed and checked."""
    import hydra
    from omegaconf import OmegaConf

    from drl_cli.cli.check import conf_dir
    from drl_cli.cli.hydra_plugins import register
    from drl_cli.cli.preflight import fill
    from drl_cli.cli.settings import build

    register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        node = hydra.compose("train", overrides=list(overrides))
    return fill(build(OmegaConf.to_container(node, resolve=True)))
