"""Functions that find the module of an algorithm by name, and check that the module is complete.

An algorithm is built-in, belongs to another installed package, or is a module of the user.
"""

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Protocol, cast

import drl_cli.algos
from drl_cli.algos.base import AlgoConfig, Algorithm, Policy
from drl_cli.replay.config import SAMPLERS
from drl_cli.utils.outside import NotFound, import_module

ENTRY_POINTS = "drl_cli.algos"
"""The entry point group in which other installed packages list their algorithms (name -> module)."""

ACTIONS = {"box": "continuous (Box)", "discrete": "discrete", "multidiscrete": "multi-discrete"}
MODES = ("single", "sync", "async", "offline")
IN_ORDER = ("sequences", "windows", "fifo", "fifo-once")
"""The replay tables that return consecutive steps of an episode, which a recurrent network needs."""
CHOICES = {"ACTIONS": tuple(ACTIONS), "MODES": MODES, "TABLES": (*SAMPLERS, "windows")}
DEFAULTS: dict[str, tuple[str, ...]] = {
    "MODES": MODES,
    "TABLES": ("uniform", "prioritized"),
    "EXPLORATION": (),
    "WRITES": (),
    "DATA": (),
}
SWITCHES = {"WEIGHTS": True, "REWARDS": False, "STEP_STATES": False}
CLASSES = {
    "Config": (AlgoConfig, "a frozen dataclass derived from drl_cli.algos.base.AlgoConfig"),
    "Policy": (Policy, "a class derived from drl_cli.algos.base.Policy"),
    "Algorithm": (Algorithm, "a class derived from drl_cli.algos.base.Algorithm"),
}


class NotAlgorithm(ValueError):
    """Raised if a module is not an algorithm. The message lists the classes and constants that are missing or wrong."""


class AlgoModule(Protocol):
    """The module of an algorithm. It has the classes Config, Policy and Algorithm, and the following constants.

    - `ACTIONS` (required): The kinds of actions that the algorithm supports, see `ActionSpec.kind`.
    - `MODES` (default: all): The run modes that the algorithm supports. On-policy algorithms never support offline.
    - `TABLES` (default: uniform and prioritized): The replay tables that the algorithm supports. An algorithm that
      supports sequences also supports windows.
    - `EXPLORATION` (default: none): The names of the values that `Algorithm.exploration` returns.
    - `WEIGHTS` (default: True): False if the loss needs no importance weights with prioritized replay (as in LAP,
      Fujimoto et al. 2020).
    - `REWARDS` (default: False): Whether the algorithm can use a reward module (`reward=`).
    - `WRITES` (default: none): The replay columns whose values `Update.columns` replaces.
    - `STEP_STATES` (default: False): Whether windows contain the recurrent state before every step, `state`
      `[B, L, S]`. If False, they contain only the state before the first step, `[B, S]`, unless `WRITES` lists `state`.
    - `DATA` (default: none): The extra columns that can be computed only when an episode has ended: `next_action` or
      `mc_return`. With such a column, workers send the steps of an episode to replay when the episode ends.
    """

    __doc__: str | None
    ACTIONS: tuple[str, ...]
    MODES: tuple[str, ...]
    TABLES: tuple[str, ...]
    EXPLORATION: tuple[str, ...]
    WRITES: tuple[str, ...]
    DATA: tuple[str, ...]
    WEIGHTS: bool
    REWARDS: bool
    STEP_STATES: bool
    Config: type[AlgoConfig]
    Policy: type[Policy]
    Algorithm: type[Algorithm]


def algorithms() -> list[str]:
    """Return the sorted names of the built-in algorithms."""
    return sorted(_built_in_paths())


def _built_in_paths() -> dict[str, str]:
    """Return the import paths of the built-in algorithms by name, such as {"dqn": "drl_cli.algos.value.dqn"}."""
    paths: dict[str, str] = {}
    for package in pkgutil.iter_modules(drl_cli.algos.__path__):
        if package.ispkg:
            package_path = f"drl_cli.algos.{package.name}"
            folders = tuple(importlib.import_module(package_path).__path__)  # a tuple, which the cache can hash
            paths |= {name: f"{package_path}.{name}" for name in _public_modules(folders)}
    return paths


@cache
def _public_modules(folders: tuple[str, ...]) -> list[str]:
    """Return the names of the modules in these folders, except packages and names with a leading underscore."""
    modules = pkgutil.iter_modules(folders)
    return [module.name for module in modules if not (module.ispkg or module.name.startswith("_"))]


def installed() -> list[str]:
    """Return the sorted names of the algorithms in other installed packages, without names of built-in algorithms."""
    names = {entry_point.name for entry_point in entry_points(group=ENTRY_POINTS)}
    return sorted(names - set(algorithms()))


def module_path(name: str) -> str:
    """Return the import path of an algorithm. A name that is neither built-in nor installed is the path itself."""
    if name in _built_in_paths():
        return _built_in_paths()[name]
    installed_modules = [entry_point.module for entry_point in entry_points(group=ENTRY_POINTS, name=name)]
    return installed_modules[0] if installed_modules else name


def load_algorithm(name: str) -> AlgoModule:
    """Import and return the module of an algorithm, and set the constants that it leaves out to their default values.

    Raise NotFound, with the known names, if there is no such module. Raise NotAlgorithm if a required class or constant
    is missing, or any is wrong. Raise ModuleRaised if the import of a module that is not built-in raises an error.
    """
    path = module_path(name)
    try:  # `import_module` converts the errors of the import to NotFound or ModuleRaised
        module = importlib.import_module(path) if name in algorithms() else import_module(path)
    except NotFound as error:
        known = ", ".join([*algorithms(), *installed()])
        raise NotFound(f"unknown algorithm '{name}': {error}; available: {known}") from error
    for constant, default in {**DEFAULTS, **SWITCHES}.items():
        vars(module).setdefault(constant, default)
    if problems := _problems(module):
        raise NotAlgorithm(f"{name} ({module.__file__}) is no algorithm: {'; '.join(problems)}")
    if is_on_policy(module.TABLES):
        vars(module)["MODES"] = tuple(mode for mode in module.MODES if mode != "offline")
    return cast(AlgoModule, module)


def _problems(module: ModuleType) -> list[str]:
    """Return an error message for each class or constant of a module that is missing or wrong.

    The default values of optional constants have to be set before.
    """
    problems = []
    for name, (base, form) in CLASSES.items():
        kind = getattr(module, name, None)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            problems.append(f"it needs {name}, {form}")
        elif base is AlgoConfig and "__dataclass_fields__" not in vars(kind):
            # Without @dataclass, the options that this class adds to its base class have no effect.
            problems.append(f"{name} must be {form}: @dataclass(frozen=True) is missing")
    for name in ("ACTIONS", *DEFAULTS):
        value, choices = getattr(module, name, None), CHOICES.get(name)
        form = f"a tuple of {', '.join(choices)}" if choices else "a tuple of names"
        if value is None:
            problems.append(f"it needs {name}, {form}")
            continue
        is_valid = isinstance(value, tuple)
        if is_valid and choices:
            is_valid = len(value) > 0 and set(value) <= set(choices)
        if not is_valid:
            problems.append(f"{name} must be {form}, got {value!r}")
    switches = {name: vars(module)[name] for name in SWITCHES}
    wrong = {name: value for name, value in switches.items() if not isinstance(value, bool)}
    return problems + [f"{name} must be True or False, got {value!r}" for name, value in wrong.items()]


def is_on_policy(tables: Iterable[str]) -> bool:
    """Return whether an algorithm is on-policy: whether all replay tables that it supports are fifo tables.

    `tables` is the constant `TABLES` of the algorithm's module, the names of these tables.
    """
    return all(table.startswith("fifo") for table in tables)


def is_for_data(name: str) -> bool:
    """Return whether a built-in algorithm is made for datasets: its policy stays near the actions of the data."""
    return ".offline." in module_path(name)


TITLES = {
    **{"muzero": "MuZero", "gumbel_muzero": "Gumbel MuZero", "sampled_muzero": "Sampled MuZero", "mrq": "MR.Q"},
    **{"sac_discrete": "discrete SAC", "cql_discrete": "discrete CQL", "crossq": "CrossQ", "vmpo": "V-MPO"},
    **{"cal_ql": "Cal-QL", "td3_bc": "TD3+BC", "rebrac": "ReBRAC", "qr_dqn": "QR-DQN", "flashsac": "FlashSAC"},
    "dreamer": "DreamerV3",
    "tdmpc2": "TD-MPC2",
}
"""The names of the built-in algorithms whose papers do not write them in capitals."""


def title(name: str) -> str:
    """Return the name of an algorithm for messages. Papers write a built-in algorithm in this way, such as SAC."""
    return TITLES.get(name, name.upper()) if name in algorithms() else name
