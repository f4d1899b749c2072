"""The config of a drl-train command line."""

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.errors import UsageError
from drl_cli.runtime.config import Config
from drl_cli.settings.build import build, to_yaml_keys
from drl_cli.settings.command_line import with_free_keys
from drl_cli.settings.conf import conf_dir, unreadable
from drl_cli.settings.hydra_grammar import is_open
from drl_cli.settings.judge import unknown_key


def compose(overrides: Sequence[str], file: Path | None = None) -> Config:
    """Composed from conf/train.yaml, or from a run's config.yaml, checked, and filled in for this machine.

    Raises UsageError.
    """
    from drl_cli.settings.fill import fill

    return fill(build(mapping(overrides, file)))


def mapping(overrides: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """What Hydra composes, as plain values that nothing has checked yet; raises UsageError."""
    with composed(overrides, file) as plain:
        return plain


@contextmanager
def composed(overrides: Sequence[str], file: Path | None = None) -> Iterator[dict[str, Any]]:
    """The same; within it Hydra knows the config as its job's.

    Hydra's decorator for programs would compose everything twice, the first time to learn whether this is a sweep.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    from drl_cli.settings.hydra_plugins import register

    register()
    path = (file or conf_dir() / "train.yaml").absolute()
    with ExitStack() as stack:
        try:
            stack.enter_context(hydra.initialize_config_dir(str(path.parent), version_base="1.3"))
            node = hydra.compose(path.stem, overrides=with_free_keys(overrides), return_hydra_config=True)
            os.environ.update(node.hydra.job.env_set)
            stack.callback(setattr, HydraConfig.instance(), "cfg", None)
            HydraConfig.instance().set_config(node)
            with open_dict(node):
                del node["hydra"]
            plain = OmegaConf.to_container(node, resolve=True)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise UsageError(brief(error)) from error
        assert isinstance(plain, dict)
        yield {str(key): value for key, value in plain.items()}


def brief(error: Exception) -> str:
    """What Hydra, or a file that it read, has found wrong, in a line of ours."""
    if isinstance(error, yaml.YAMLError):
        return unreadable(getattr(getattr(error, "problem_mark", None), "name", "a yaml option"), error)
    text = str(error)
    if override := getattr(error, "override", None):
        hint = "a quote or a bracket is not closed" if is_open(override) else "a value with such signs needs quotes"
        return f"{override}: can't be read: {hint}, as in 'key=\"a b\"'"
    if absent := re.match(r"Could not override '(replay\..+?)'", text):
        return unknown_key(absent[1], AlgoConfig)
    for pattern, line in _SAID.items():
        if match := re.search(pattern, text):
            groups = {name: value or "" for name, value in match.groupdict().items()}
            return line.format(**groups, key=getattr(error, "full_key", None) or "a value").replace("''", "the config")
    return " ".join(text.split("\n\n")[0].split())


_SAID = {
    r"In '(?P<file>.*?)': Could not find '(?P<what>.*?)'": "{file}: there is no {what}",
    r"Could not find '(?P<what>.*?)'": "there is no {what}",
    r"Could not override '(?P<what>.*?)'": "{what}: there is no such key or group to change",
    r"Could not delete(?: from config)?.*?'(?P<what>.*?)'": "{what}: there is no such key to leave out",
    r"Could not append to config.*already at '(?P<what>.*?)'": "{what}: this key is there already; leave the plus out",
    r"Multiple values for (?P<what>[^\s.]+)": "{what}: is given twice",
    r"Interpolation key '(?P<what>.*?)' not found": "{key}: there is no key {what} to take the value of",
    r"Unsupported interpolation type (?P<what>\S+)": "{key}: there is no resolver {what}",
    r"Error resolving interpolation '(?P<what>.*?)'": "{what}: can't be filled in: a group that it names is missing",
    r"Key '(?P<what>.*?)' is not in struct": "{key}: no such key",
    r"Error merging override (?P<what>\S+?)=": "{what}: can't have this value",
    r"(?P<what>InterpolationLoop|recursive interpolation|RecursionError)": "{key}: is the value of itself",
}
"""What Hydra and its config library say, and how it is said here."""


def run_hydra(args: Sequence[str]) -> None:
    """What Hydra does by itself: it prints the config, or completes for other shells than ours."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from drl_cli.settings.hydra_plugins import register

    register()
    sys.argv = [sys.argv[0], *args]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its exceptions come to us, who print one line
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")(lambda node: None)()
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UsageError(brief(error)) from error


def write_config(folder: Path, config: Config) -> None:
    """config.yaml, in one piece, without what says how it came about."""
    from omegaconf import OmegaConf

    config = dataclasses.replace(config, resume=None, from_config=None, confirm=False)
    draft = folder / f".config.yaml.{os.getpid()}"
    OmegaConf.save(OmegaConf.create(to_yaml_keys(config)), draft)
    os.replace(draft, folder / "config.yaml")
