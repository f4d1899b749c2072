"""The config of a drl-train command line, for commands that do not train."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drl_cli.algos.base import AlgoConfig
from drl_cli.cli.check import conf_dir, with_free_keys
from drl_cli.cli.errors import UsageError
from drl_cli.cli.settings import build, unknown_key
from drl_cli.runtime.config import Config


def compose(overrides: Sequence[str], file: Path | None = None) -> Config:
    """Composed from conf/train.yaml, or from a run's config.yaml, checked, and filled in for this machine.

    Raises UsageError.
    """
    from drl_cli.cli.preflight import fill

    return fill(build(mapping(overrides, file)))


def mapping(overrides: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """What Hydra composes, as plain values that nothing has checked yet; raises UsageError."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from drl_cli.cli.hydra_plugins import register

    register()
    path = (file or conf_dir() / "train.yaml").absolute()
    try:
        with hydra.initialize_config_dir(str(path.parent), version_base="1.3"):
            plain = OmegaConf.to_container(hydra.compose(path.stem, overrides=with_free_keys(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(brief(error)) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def brief(error: Exception) -> str:
    """What Hydra found wrong, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    absent = re.match(r"Could not override '(replay\..+?)'", lines[0])
    if absent:
        return unknown_key(absent[1], AlgoConfig)
    return "; ".join(lines[:3])
