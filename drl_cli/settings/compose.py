"""Compose the config of a drl-train command line with Hydra."""

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from drl_cli.config.config import Config
from drl_cli.errors import UsageError, interruption
from drl_cli.settings.build import build, to_yaml_keys, with_new_keys
from drl_cli.settings.command_line import for_hydra, is_run
from drl_cli.settings.conf import conf_dir, unreadable
from drl_cli.settings.env_names import default_algorithm, family_values
from drl_cli.settings.first_try import with_first_try
from drl_cli.settings.trust import read_run, remember
from drl_cli.utils.files import replace_file
from drl_cli.utils.hydra_grammar import is_open

HYDRA_TEXTS = {
    r"In '(?P<file>.*?)': Could not \w+ '(?P<what>.*?)'": "{file}: there is no {what}",
    r"Could not [\w ]+\.? '(?P<what>.*?)'": "there is no {what}",
    r"Multiple values for (?P<what>[^\s.]+)": "{what}: is given twice",
    r"Interpolation key '(?P<what>.*?)' not found": "{key}: there is no key {what} to take the value of",
    r"Unsupported interpolation type (?P<what>\S+)": "{key}: there is no resolver {what}",
    r"Error resolving interpolation '(?P<what>.*?)'": "{what}: can't be filled in: a group that it names is missing",
    r'raised while resolving interpolation: "?(?P<what>[^"\n]*)': "{key}: {what}",
    r"InterpolationLoop|[Rr]ecursive interpolation|RecursionError": "{key}: is the value of itself",
}
"""Error texts of Hydra and OmegaConf, as regular expressions, each with our text for the user."""


def compose(overrides: Sequence[str], file: Path | None = None) -> Config:
    """Return the config for these overrides, filled in for this machine. Raise UsageError if it has a problem.

    `file` is the main config: conf/train.yaml by default, or a run's config.yaml.
    """
    from drl_cli.settings.fill import fill

    return fill(build(mapping(overrides, file)))


def mapping(overrides: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """Return the composed config as plain values, without checking them. Raise UsageError if Hydra fails."""
    with composed(overrides, file) as plain:
        return plain


def complete(overrides: Sequence[str], file: Path | None = None) -> list[str]:
    """Return the overrides for Hydra. If the action space chooses the algorithm (`default_algorithm`), add it."""
    chosen = default_algorithm(overrides, file)
    words = [*for_hydra(overrides), *([f"algo={chosen}"] if chosen is not None else [])]
    if not is_run(file):
        return words
    # a run's config has no defaults list
    return [f"+{word}" if word.startswith(("mode=", "hpo=")) else word for word in words]


def complete_with_family(overrides: Sequence[str], file: Path | None = None) -> list[str]:
    """Return `complete(overrides, file)`, with the tuned values for its family of environments."""
    with _composed_once(overrides, file) as (_, choices):
        option = family_values(overrides, choices)
    return complete([*overrides, *([f"tuned={option}"] if option is not None else [])], file)


@contextmanager
def composed(overrides: Sequence[str], file: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield the composed config as plain values. Raise UsageError if Hydra fails. HydraConfig describes this job.

    Without tuned values for the environment, those for MuJoCo tasks or for images are used.
    """
    with _composed_once(overrides, file) as (plain, choices):
        option = family_values(overrides, choices)
        if option is None:
            yield plain
            return
    with _composed_once([*overrides, f"tuned={option}"], file) as (plain, _):
        yield plain


@contextmanager
def _composed_once(overrides: Sequence[str], file: Path | None) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield the composed config, and the chosen option of each group.

    Unlike the decorator hydra.main, compose only once. The decorator first composes to find out whether to sweep.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict

    from drl_cli.settings.hydra_plugins import register

    register()
    path = (file or conf_dir() / "train.yaml").absolute()
    if is_run(file):
        read_run(path)  # refuses what Hydra would resolve or act on
    with ExitStack() as stack:
        with _usage_errors():
            stack.enter_context(hydra.initialize_config_dir(str(path.parent), version_base="1.3"))
            node = hydra.compose(path.stem, overrides=complete(overrides, file), return_hydra_config=True)
            os.environ.update(node.hydra.job.env_set)
            stack.callback(setattr, HydraConfig.instance(), "cfg", None)
            HydraConfig.instance().set_config(node)
            choices = {str(group): str(option) for group, option in node.hydra.runtime.choices.items()}
            with open_dict(node):
                del node["hydra"]
            plain = OmegaConf.to_container(node, resolve=True)
        assert isinstance(plain, dict)
        named = {str(key): value for key, value in plain.items()}
        is_new, algo, chosen = not is_run(file), named.get("algo"), choices.get("algo")
        if not is_new:
            named = with_new_keys(named)
        elif chosen is not None and isinstance(algo, dict) and chosen != algo.get("name") and not algo.get("preset"):
            named["algo"] = {**algo, "preset": chosen}  # the word typed as `algo=`, if it is not the algorithm's name
        yield with_first_try(named, choices, is_new), choices


def run_hydra(args: Sequence[str]) -> None:
    """Let Hydra handle a command line that prints the config, or completes words for zsh and fish."""
    import hydra

    from drl_cli.settings.hydra_plugins import register

    register()
    sys.argv = [sys.argv[0], *args]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that Hydra raises its errors instead of printing them
    with _usage_errors():
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")(lambda node: None)()


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Convert errors of Hydra, and errors in the files that Hydra reads, to UsageError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except yaml.YAMLError as error:
        file = getattr(getattr(error, "problem_mark", None), "name", "a yaml option")
        raise UsageError(unreadable(file, error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        if interruption(error) is not None:
            raise
        raise UsageError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    if override := getattr(error, "override", None):
        typed = override.lstrip("+")
        if (closed := re.sub(r",\s*([\]}])", r"\1", typed)) != typed:
            return f"{typed}: can't be read: a comma at the end; say {closed}"
        if is_open(override) and typed.count("[") > typed.count("]"):
            whole = typed + "]" * (typed.count("[") - typed.count("]"))
            return f"{typed}: can't be read: a quote or a bracket is not closed; say {whole}"
        hint = "a quote or a bracket is not closed" if is_open(override) else "a value with such signs needs quotes"
        return f"{typed}: can't be read: {hint}, as in 'key=\"a b\"'"
    for pattern, line in HYDRA_TEXTS.items():
        if match := re.search(pattern, str(error)):
            return line.format(key=getattr(error, "full_key", None) or "a value", **match.groupdict())
    return " ".join(str(error).split("\n\n")[0].split())


def write_config(folder: Path, config: Config) -> None:
    """Write config.yaml atomically, without keys such as `resume` that only concern one command.

    Later commands of the same user import the modules that it names without asking.
    """
    from omegaconf import OmegaConf

    config = dataclasses.replace(config, resume=None, from_config=None, confirm=False, trust=False)
    node = to_yaml_keys(config)
    replace_file(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(node)).encode())
    remember(folder / "config.yaml", node)
