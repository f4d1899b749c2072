"""The games that drl-cli makes itself, with their short names. Nothing here imports their packages."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec as EnvRegistration

from drl_cli.envs.config import EnvError
from drl_cli.utils.ranges import Range


@dataclass(frozen=True)
class Library:
    """A package with one file per game.

    `files` is a glob for the files of the games, `id` is a format for their ids, and `make` names the class that makes
    the games.
    """

    module: str
    files: str
    id: str
    make: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: arguments of any type


LIBRARIES = (
    Library("ale_py", "roms/*.bin", "ALE/{}-v5", "drl_cli.envs.atari:Atari"),
    Library("minatar", "environments/[a-z]*.py", "MinAtar/{}-v1", "drl_cli.envs.minatar:MinAtar"),
    Library(
        *("minatar", "environments/[a-z]*.py", "MinAtar/{}-v0", "drl_cli.envs.minatar:MinAtar"),
        {"minimal_actions": False},
    ),
)
FOR_TWO = {"combat", "joust", "maze_craze", "warlords"}
"""Atari games for two players, which are left out."""


@cache
def games() -> Mapping[str, EnvRegistration]:
    """Return the registration of each game of the installed packages by id, without importing these packages."""
    found = {}
    for library in LIBRARIES:
        package = importlib.util.find_spec(library.module)
        for folder in (package and package.submodule_search_locations) or ():
            for game in sorted({path.stem for path in Path(folder).glob(library.files)} - FOR_TWO):
                id = library.id.format(game.title().replace("_", ""))
                found[id] = EnvRegistration(id, library.make, kwargs={"game": game, **library.kwargs})
    return found


def check_number(name: str, value: object, allowed: Range, *, is_whole: bool = True) -> None:
    """Raise EnvError unless the value is a number (by default a whole number) in the allowed range."""
    kinds = int if is_whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise EnvError(f"env.kwargs.{name}: must be a {'whole ' if is_whole else ''}number, got {value!r}")
    if value not in allowed:
        raise EnvError(f"env.kwargs.{name}: must be {allowed}, got {value}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise EnvError unless the value is one of the choices."""
    if value not in choices:
        raise EnvError(f"env.kwargs.{name}={value}: there are {', '.join(map(str, choices))}")
