"""Games that are made here, by our own classes, of the files in their packages: Atari's and MinAtar's."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec as EnvRegistration


@dataclass(frozen=True)
class Library:
    """A package with a file for each game, by a pattern in its folder; ids with the game's name, and what makes it."""

    module: str
    files: str
    id: str
    make: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: as in EnvConfig.kwargs


LIBRARIES = (
    Library("ale_py", "roms/*.bin", "ALE/{}-v5", "drl_cli.envs.games.atari:Atari"),
    Library("minatar", "environments/[a-z]*.py", "MinAtar/{}-v1", "drl_cli.envs.games.minatar:MinAtar"),
    Library(
        *("minatar", "environments/[a-z]*.py", "MinAtar/{}-v0", "drl_cli.envs.games.minatar:MinAtar"),
        {"minimal_actions": False},
    ),
)
FOR_TWO = {"combat", "joust", "maze_craze", "warlords"}
"""Atari games that nobody can play alone."""


@cache
def games() -> Mapping[str, EnvRegistration]:
    """How to make each of those whose package is installed, by id: ALE/SpaceInvaders-v5; nothing is imported."""
    found = {}
    for library in LIBRARIES:
        package = importlib.util.find_spec(library.module)
        for folder in (package and package.submodule_search_locations) or ():
            for game in sorted({path.stem for path in Path(folder).glob(library.files)} - FOR_TWO):
                id = library.id.format(game.title().replace("_", ""))
                found[id] = EnvRegistration(id, library.make, kwargs={"game": game, **library.kwargs})
    return found
