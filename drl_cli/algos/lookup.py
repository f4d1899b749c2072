"""Find algorithms by name: built-in, installed, or a user's module."""

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
"""Tables that serve the steps of an episode in order, which a recurrent network needs."""
CHOICES = {"ACTIONS": tuple(ACTIONS), "MODES": MODES, "TABLES": (*SAMPLERS, "windows")}
DEFAULTS: dict[str, tuple[str, ...]] = {
    "MODES": MODES,
    "TABLES": ("uniform", "prioritized"),
    "EXPLORATION": (),
    "WRITES": (),
    "DATA": (),
}
CLASSES = {
    "Config": (AlgoConfig, "a frozen dataclass derived from drl_cli.algos.base.AlgoConfig"),
    "Policy": (Policy, "a class derived from drl_cli.algos.base.Policy"),
    "Algorithm": (Algorithm, "a class derived from drl_cli.algos.base.Algorithm"),
}


class NotAlgorithm(ValueError):
    """Raised if a module is not an algorithm; the message lists what is missing or wrong, and what is required."""


class AlgoModule(Protocol):
    """The module of an algorithm: three classes, and constants that state which runs can use the algorithm.

    `ACTIONS` lists the supported kinds of actions (`ActionSpec.kind`) and is required. `MODES` lists the supported run
    modes, by default all; an on-policy algorithm can't run offline. `TABLES` lists the supported replay tables, by
    default uniform and prioritized; an algorithm that lists sequences also supports windows.
    `EXPLORATION` lists the names of the values that `Algorithm.exploration` returns, by default none. `WEIGHTS` is
    False if the loss needs no importance weights for prioritized replay (as in LAP, Fujimoto et al. 2020).
    `REWARDS` is True if the algorithm takes a reward module (`reward=`). `WRITES` lists the columns of rows in replay
    that `Update.columns` replaces, by default none. If `STEP_STATES` is True, or if WRITES lists `state`, windows have
    the recurrent state before each step, `state` `[B, L, S]`; otherwise only before the first step, `[B, S]`.
    `DATA` lists columns that depend on later steps of the episode, `next_action` or `mc_return`, by default none. A
    worker then sends the rows of an episode to replay only when the episode ends.
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
    """Return the names of the built-in algorithms."""
    return sorted(_paths())


def _paths() -> dict[str, str]:
    """Return the import paths of the built-in algorithms, by name.

    An algorithm is a file in a room of this folder (value, off_policy, ...) whose name has no leading underscore.
    """
    rooms = [f"drl_cli.algos.{m.name}" for m in pkgutil.iter_modules(drl_cli.algos.__path__) if m.ispkg]
    return _modules(*((room, *importlib.import_module(room).__path__) for room in rooms))


@cache
def _modules(*rooms: tuple[str, ...]) -> dict[str, str]:
    """Return the import paths of the modules in these packages, by name. A room is (package, folder, ...)."""
    found = [(package, m) for package, *folders in rooms for m in pkgutil.iter_modules(folders)]
    return {m.name: f"{package}.{m.name}" for package, m in found if not (m.ispkg or m.name.startswith("_"))}


def installed() -> list[str]:
    """Return the names of the algorithms in other installed packages, except names of built-in algorithms."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(algorithms()))


def module_path(name: str) -> str:
    """Return the import path of the module of a built-in or installed algorithm; return any other name unchanged."""
    if name in _paths():
        return _paths()[name]
    return next((point.module for point in entry_points(group=ENTRY_POINTS, name=name)), name)


def load_algorithm(name: str) -> AlgoModule:
    """Import and return the module of an algorithm.

    Raise NotFound, with the known names, if there is no such module. Raise NotAlgorithm if a required class or constant
    is missing or wrong, and ModuleRaised if the import of a user's module raises.
    """
    path = module_path(name)
    try:
        module = importlib.import_module(path) if name in algorithms() else import_module(path)
    except NotFound as error:
        known = ", ".join([*algorithms(), *installed()])
        raise NotFound(f"unknown algorithm '{name}': {error}; available: {known}") from error
    for constant, default in {**DEFAULTS, "WEIGHTS": True, "REWARDS": False, "STEP_STATES": False}.items():
        vars(module).setdefault(constant, default)
    if problems := _lacks(module):
        raise NotAlgorithm(f"{name} ({module.__file__}) is no algorithm: {'; '.join(problems)}")
    if is_on_policy(module.TABLES):
        vars(module)["MODES"] = tuple(mode for mode in module.MODES if mode != "offline")
    return cast(AlgoModule, module)


def _lacks(module: ModuleType) -> list[str]:
    """Return an error line for each required class or constant that is missing or has a wrong form."""
    problems = []
    for name, (base, form) in CLASSES.items():
        kind = getattr(module, name, None)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            problems.append(f"it needs {name}, {form}")
        elif base is AlgoConfig and "__dataclass_fields__" not in vars(kind):  # its fields would be ignored
            problems.append(f"{name} must be {form}: @dataclass(frozen=True) is missing")
    for name in ("ACTIONS", *DEFAULTS):
        value, choices = getattr(module, name, None), CHOICES.get(name)
        form = f"a tuple of {', '.join(choices)}" if choices else "a tuple of names"
        if value is None:
            problems.append(f"it needs {name}, {form}")
        elif not isinstance(value, tuple) or (choices and not (value and set(value) <= set(choices))):
            problems.append(f"{name} must be {form}, got {value!r}")
    if not isinstance(weights := vars(module)["WEIGHTS"], bool):
        problems.append(f"WEIGHTS must be True or False, got {weights!r}")
    return problems


def is_on_policy(tables: Iterable[str]) -> bool:
    """Return whether an algorithm with these `TABLES` learns only from the newest rollouts of its own policy."""
    return all(table.startswith("fifo") for table in tables)


def title(name: str) -> str:
    """Return an algorithm's name for messages: `SAC` for the built-in `sac`, or `my_pkg.my_algo` unchanged."""
    return name.upper() if name in algorithms() else name
