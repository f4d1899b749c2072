"""Find the Config class of the algorithm that the user chose by its name or by a yaml file."""

import os
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import NotAlgorithm, algorithms, installed, load_algorithm
from drl_cli.errors import USER_CODE, UsageError, as_usage_error
from drl_cli.settings.conf import LOADER, bases, conf_dir, option_file, options, unreadable
from drl_cli.settings.synonyms import nearest_algorithm
from drl_cli.settings.value_types import Unreadable, group_of
from drl_cli.utils.outside import ModuleRaised, NotFound
from drl_cli.utils.spelling import did_you_mean


def config_class(name: str) -> type[AlgoConfig]:
    """Return the Config class of an algorithm. Raise UsageError, with exit code 4 if the user's module raised."""
    try:
        with as_usage_error(NotAlgorithm), as_usage_error(ModuleRaised, exit_code=USER_CODE):
            found = load_algorithm(name).Config
        group_of(found)
    except NotFound as error:
        known = algorithm_names()
        near = nearest_algorithm(name)
        hint = f" The nearest here is algo={near}." if near else did_you_mean(name, ["auto", *known], quote="'")
        listed = ", ".join(known)
        line = f"unknown algorithm '{name}'.{hint}   available: {listed}, or a module to import from {os.getcwd()}"
        raise UsageError(line if name.isidentifier() else str(error)) from error
    except Unreadable as error:
        raise UsageError([f"{name}: {problem}" for problem in error.problems]) from error
    return found


def algorithm_names() -> list[str]:
    """Return every name that `algo=` takes, except auto and the user's modules: algorithms, presets, installed ones."""
    return list(dict.fromkeys([*options("algo"), *algorithms(), *installed()]))


def algorithms_with(option: str) -> list[str]:
    """Return the built-in algorithms whose yaml sets this option. Do not import the algorithms, which is slow."""
    found = []
    for name in algorithms():
        node = yaml.load((conf_dir() / "algo" / f"{name}.yaml").read_text(), LOADER)
        found += [name] if option in node.get("algo", node) else []
    return found


def short_name(algo: type[AlgoConfig]) -> str:
    """Return the last part of the name of the module that defines a Config class."""
    return algo.__module__.rpartition(".")[2]


def algorithm_of(option: str) -> str:
    """Return the algorithm of `algo=OPTION`: the `name` in the option's yaml or in a yaml that its `defaults` name."""
    for _ in range(9):  # follow `defaults` from yaml to yaml, at most 9 times
        file = option_file("algo", option)
        if file is None:
            return option
        try:
            node = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise UsageError(unreadable(file, error)) from error
        content: dict[str, Any] = node if isinstance(node, dict) else {}
        inner = content.get("algo")
        name = (inner if isinstance(inner, dict) else content).get("name")
        if name is not None:
            return str(name)
        if not (names := bases(content)):
            return option
        option = names[0]
    return option
