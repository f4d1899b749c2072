"""Compose the config of a drl-train command line in milliseconds: each choice of options is composed once."""

import copy
import functools


def compose_plain(*overrides):
    """Return the plain mapping that Hydra composes from these overrides.

    Each choice of our options and of environments is composed once, and values are put in as Hydra does it. Hydra
    composes everything again if an option is the user's.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from drl_cli.settings.conf import conf_dir, groups, own_dirs

    parsed, conf, names = OverridesParser.create().parse_overrides(list(overrides)), conf_dir(), groups()
    choices = [each for each in parsed if each.key_or_group in names]
    ours = all(
        each.key_or_group == "env" or (conf / f"{each.input_line.replace('=', '/', 1)}.yaml").is_file()
        for each in choices
    )
    if own_dirs or not ours or any(each.is_sweep_override() or each.package for each in parsed):
        return OmegaConf.to_container(_compose(*overrides), resolve=True)
    node = copy.deepcopy(_composed_once(conf, *(each.input_line for each in choices)))
    ConfigLoaderImpl._apply_overrides_to_config([each for each in parsed if each not in choices], node)
    return OmegaConf.to_container(node, resolve=True)


def _compose(*overrides):
    from hydra import compose, initialize_config_dir

    from drl_cli.settings.conf import conf_dir
    from drl_cli.settings.hydra_plugins import register

    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", overrides=list(overrides))


@functools.cache
def _composed_once(conf, *choices):
    return _compose(*choices)
