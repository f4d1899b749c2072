"""Compose the config of a drl-train command line in milliseconds: each choice of options is composed once."""

import copy
import functools


def compose_plain(*overrides):
    """Return the plain mapping that Hydra composes from these overrides.

    Each choice of our options and of environments is composed once, and values are put in as Hydra does it. Hydra
    composes everything again if an option is the user's, or if an override is more than a value for a key.
    """
    from omegaconf import OmegaConf

    from drl_cli.settings.conf import conf_dir, groups, own_dirs

    conf, names = conf_dir(), groups()
    parsed = [_parsed(each) for each in overrides]
    choices = [each for each in parsed if each.key_or_group in names]
    ours = all(
        each.key_or_group == "env" or (conf / f"{each.input_line.replace('=', '/', 1)}.yaml").is_file()
        for each in choices
    )
    if not own_dirs and ours and not any(each.is_sweep_override() or each.package for each in parsed):
        plain = copy.deepcopy(_composed_once(conf, *(each.input_line for each in choices)))
        if all(_is_put(plain, each) for each in parsed if each not in choices):
            return plain
    return OmegaConf.to_container(_compose(*overrides), resolve=True)


def _is_put(plain, override):
    """Put the override's value in its place; return False if only Hydra can do it."""
    *path, name = override.key_or_group.split(".")
    for key in path:
        plain = plain.get(key) if isinstance(plain, dict) else None
    value = override.value()
    is_simple = override.type.name == "CHANGE" and "$" not in override.input_line and not isinstance(value, dict)
    if not (is_simple and isinstance(plain, dict) and name in plain and not isinstance(plain[name], dict)):
        return False
    plain[name] = value
    return True


@functools.cache
def _parsed(word):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(word)


def _compose(*overrides):
    from hydra import compose, initialize_config_dir

    from drl_cli.settings.conf import conf_dir
    from drl_cli.settings.hydra_plugins import register

    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", overrides=list(overrides))


@functools.cache
def _composed_once(conf, *choices):
    from omegaconf import OmegaConf

    return OmegaConf.to_container(_compose(*choices), resolve=True)
