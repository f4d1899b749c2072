"""The algorithm that the user chose by its name or by a yaml file: its Config class, and whether it fits a run."""

import os
from contextlib import suppress
from typing import Any

import yaml

from drl_cli.algos.base import AlgoConfig
from drl_cli.algos.lookup import (
    ACTIONS,
    IN_ORDER,
    NotAlgorithm,
    algorithms,
    installed,
    is_for_data,
    is_on_policy,
    load_algorithm,
    module_path,
    title,
)
from drl_cli.errors import USER_CODE, UsageError, as_usage_error
from drl_cli.settings.conf import bases, conf_dir, defaults, option_file, options, read_yaml, unreadable
from drl_cli.settings.value_types import Unreadable, group_of
from drl_cli.types import EnvSpec
from drl_cli.utils.outside import ModuleRaised, NotFound
from drl_cli.utils.spelling import did_you_mean, nearest_algorithm

DEFAULT_ALGORITHMS = {"discrete": "dqn", "multidiscrete": "ppo"}
"""The default algorithm by the kind of actions. The default of train.yaml is for continuous actions."""
RELATIVES = {("muzero", "box"): "sampled_muzero", ("gumbel_muzero", "box"): "sampled_muzero"}
RELATIVES |= {("sampled_muzero", "discrete"): "gumbel_muzero"}
"""The algorithm of the same family for another kind of actions, where it is named before the default."""


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
    """Return the built-in algorithms whose yaml sets this option."""
    return [name for name in algorithms() if option in algorithm_options(name)]


def algorithm_options(name: str) -> list[str]:
    """Return the options in the yaml of a built-in algorithm. Do not import the algorithm, which is slow."""
    node = read_yaml(conf_dir() / "algo" / f"{name}.yaml")
    return [*node.get("algo", node)]


def short_name(algo: type[Any]) -> str:
    """Return the last part of the name of the module that defines a Config class."""
    return algo.__module__.rpartition(".")[2]


def built_in_parent(algo: type[Any]) -> type[AlgoConfig] | None:
    """Return the first Config class of a built-in algorithm among a class and its parents, or None."""
    parents = (parent for parent in algo.__mro__ if short_name(parent) in algorithms())
    return next((parent for parent in parents if module_path(short_name(parent)) == parent.__module__), None)


def algorithm_of(option: str) -> str:
    """Return the algorithm of `algo=OPTION`: the `name` in the option's yaml or in a yaml that its `defaults` name."""
    for _ in range(9):  # follow `defaults` from yaml to yaml, at most 9 times
        file = option_file("algo", option)
        if file is None:
            return option
        try:
            node = read_yaml(file)
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


def refusal(
    name: str, spec: EnvSpec, mode: str, table: str, needs_steps: bool = False, *, typed: str = "", replay: str = ""
) -> str | None:
    """Return why an algorithm cannot use this environment, run mode or replay table, or None if all fit.

    With `needs_steps`, the network is recurrent, and the advice names only tables that serve steps in order. `typed`
    and `replay` are the words after `algo=` and `replay=`, if they are not `name` and `table`.
    """
    module, subject = load_algorithm(name), title(typed or name)
    if problem := action_problem(name, spec, typed, mode):
        return problem
    if mode == "offline" and is_on_policy(module.TABLES):
        why = "learns from the newest rollouts of its own policy, which a dataset does not have"
        return f"{subject} is on-policy: it {why}; say an off-policy algorithm, such as {_offline(spec.action.kind)}"
    if mode not in module.MODES:
        line = f"{subject} does not run in mode={mode}; it runs in {', '.join(module.MODES)}"
        return f"{line}: say mode=offline data=PATH" if module.MODES == ("offline",) else line
    implied = {"fifo": "fifo-once", "sequences": "windows"}
    accepted = {*module.TABLES, *(implied[name] for name in module.TABLES if name in implied)}
    if table not in accepted:
        if table == "fifo" and "fifo-once" in accepted:  # with replay.times=1, fifo would fit
            return f"{subject} can't learn from replay=fifo with replay.times above 1; leave replay.times out"
        in_order = [each for each in module.TABLES if each in IN_ORDER] if needs_steps else []
        tables = " or ".join(f"replay={each}" for each in in_order or module.TABLES)
        return f"{subject} can't learn from replay={replay or table}; say {tables}"
    return None


def _offline(kind: str) -> str:
    """Return `algo=NAME` of the algorithms that are made for datasets and have this kind of actions."""
    names = dict.fromkeys(["iql", "cql_discrete", "bc", *algorithms()])  # those that algo=auto takes come first
    found = [name for name in names if kind in load_algorithm(name).ACTIONS and is_for_data(name)]
    return " or ".join(f"algo={name}" for name in found[:3])


def action_problem(name: str, spec: EnvSpec, typed: str = "", mode: str = "") -> str | None:
    """Return why an algorithm can't act in an environment, and all that can; None if this one can.

    With mode=offline, name those that learn from a dataset. `typed` is the word after `algo=`, if it is not `name`.
    """
    kind, module = spec.action.kind, load_algorithm(name)
    if kind in module.ACTIONS:
        return None
    wanted = ACTIONS[module.ACTIONS[0]]
    article = "an" if wanted[0] in "aeiou" else "a"
    advice = _offline(kind) if mode == "offline" else ""
    if not advice:
        default = RELATIVES.get((name, kind)) or DEFAULT_ALGORITHMS.get(kind, defaults()["algo"])
        advice = f"algo={default}, or one of {', '.join(each for each in algorithms_for(kind) if each != default)}"
    subject = f"{title(typed or name)} needs {article} {wanted} action space"
    return f"{subject}; {spec.id} has {spec.action.text}. For this: {advice}"


def algorithms_for(kind: str) -> list[str]:
    """Return every name for `algo=` whose algorithm has this kind of actions.

    Leave out broken algorithms, and those that can't learn from an environment (BC).
    """
    found = []
    for name in algorithm_names():
        with suppress(NotFound, NotAlgorithm, ModuleRaised, UsageError):
            module = load_algorithm(algorithm_of(name))
            found += [name] if kind in module.ACTIONS and module.MODES != ("offline",) else []
    return found
