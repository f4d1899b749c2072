"""List environments, those that drl-cli makes itself, and the packages that they need. Import no such package."""

import importlib
import importlib.util
import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium
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
    kwargs: Mapping[str, Any] = field(default_factory=dict)


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


@contextmanager
def without_model_warnings(id: str) -> Iterator[None]:
    """Ignore MuJoCo's warnings while one of the MuJoCo tasks of Gymnasium or dm_control is built.

    MuJoCo warns about an old attribute in the models of cheetahs, once per environment, on stderr and in a file
    MUJOCO_LOG.TXT. Warnings about an unstable simulation come later and are shown.
    """
    if id.startswith("dm_control/"):
        log = logging.getLogger("absl")  # dm_control sends MuJoCo's warnings to this logger
        was, log.disabled = log.disabled, True
        try:
            yield
        finally:
            log.disabled = was
        return
    # Gymnasium also makes an id without its version
    versions = [spec for name, spec in gymnasium.registry.items() if id in (name, name.rpartition("-v")[0])]
    mujoco = _import() if any("gymnasium.envs.mujoco" in str(spec.entry_point) for spec in versions) else None
    if mujoco is None:
        yield
        return
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def _import() -> Any:
    """Return the module mujoco, or None if it is not installed, which gymnasium.make reports."""
    try:
        import mujoco
    except ImportError:
        return None
    return mujoco


NEEDS = {
    "box2d": ("Box2D", "gymnasium[box2d]"),
    "mujoco": ("mujoco", "drl-cli[mujoco]"),
    "phys2d": ("jax", "gymnasium[jax]"),
    "tabular": ("jax", "gymnasium[jax]"),
}
"""For each family of Gymnasium's environments: the module that the family imports, and the package to install."""


@dataclass(frozen=True)
class Package:
    """A package of environments.

    `names` is a regular expression for the ids of its environments, `module` is the module to import, and `install` is
    the argument of `pip install`. `example` is an id that `drl-list` shows; if it is None, `drl-list` omits the
    package. If `registers` is True, drl-cli imports the module, which registers its ids.
    """

    names: str
    module: str
    install: str
    example: str | None = None
    registers: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether drl-cli makes or registers the package's environments, so that `env=` takes ids without `module:`."""
        return self.registers or any(library.module == self.module for library in LIBRARIES)

    @property
    def is_there(self) -> bool:
        return _is_there(self.module)


PACKAGES = (
    Package(r"ALE/.*", "ale_py", "drl-cli[atari]", "ALE/Pong-v5"),
    Package(r"MinAtar/.*", "minatar", "drl-cli[minatar]", "MinAtar/Breakout-v1"),
    Package(r"(MiniGrid|BabyAI)-.*", "minigrid", "minigrid", "MiniGrid-Empty-5x5-v0"),
    Package(
        r"(highway|highway-fast|merge|roundabout|parking|intersection|racetrack)-.*",
        *("highway_env", "highway-env", "highway-v0"),
    ),
    Package(
        r"(Fetch(Reach|Push|Slide|PickAndPlace)|Hand(Reach|Manipulate)|AdroitHand|AntMaze|PointMaze|FrankaKitchen).*",
        *("gymnasium_robotics", "drl-cli[robotics]", "FetchReach-v4", True),
    ),
    Package(r"dm_control/.*", "shimmy", "drl-cli[dmc]", "dm_control/cartpole-balance-v0", True),
    Package(r"MiniWorld-.*", "miniworld", "miniworld", "MiniWorld-Hallway-v0"),
    Package(r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip).*", "panda_gym", "panda-gym"),
    Package(r"\w+BulletEnv-v\d+", "pybullet_envs_gymnasium", "pybullet-envs-gymnasium"),
    Package(r"PyFlyt/.*", "PyFlyt.gym_envs", "PyFlyt"),
    Package(r"gym_pusht/.*", "gym_pusht", "gym-pusht"),
    Package(r"gym_aloha/.*", "gym_aloha", "gym-aloha"),
    Package(r"FlappyBird-v\d+", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    Package(r"Meta-World/.*", "metaworld", "metaworld"),
)
"""The known packages. The user chooses an environment by `env=module:Id`, or by `env=Id` if the package `is_ours`."""


@dataclass(frozen=True)
class Entry:
    """An environment that can be listed.

    `id` is its id for `env=`, and `missing` is the package to install first, or None.
    """

    id: str
    family: str
    missing: str | None


def entries() -> list[Entry]:
    """Return the environments of Gymnasium, except removed ones, and then the environments of other packages."""
    listed = [package for package in PACKAGES if package.example is not None]
    of_packages = [entry for package in listed for entry in _of_package(package)]
    return [*sorted(_registered(), key=lambda entry: entry.id), *of_packages]


def package_of(name: str) -> Package | None:
    """Return the package whose pattern `names` matches this name, or None."""
    return next((package for package in PACKAGES if re.fullmatch(package.names, name)), None)


def known_packages() -> set[str]:
    """Return the names of the packages whose environments a run's config may name without the user's consent.

    These are drl-cli, Gymnasium, the packages in PACKAGES, and installed packages with Gymnasium's entry point.
    """
    plugins = {point.module.partition(".")[0] for point in entry_points(group="gymnasium.envs")}
    return {"drl_cli", "gymnasium", *(package.module.partition(".")[0] for package in PACKAGES), *plugins}


def makes(found: Any, base: type) -> bool:
    """Return whether an object is a class derived from `base`, or a function outside of `known_packages`."""
    if isinstance(found, type):
        return issubclass(found, base)
    return inspect.isfunction(found) and found.__module__.partition(".")[0] not in known_packages()


def register(id: str) -> None:
    """Import the installed module that registers this id, if drl-cli knows one."""
    package = package_of(id)
    if id in gymnasium.registry or package is None or not (package.registers and package.is_there):
        return
    with warnings.catch_warnings(), without_model_warnings(id):
        warnings.simplefilter("ignore")  # of ids that were not asked for
        importlib.import_module(package.module)


def missing_package(id: str) -> Package | None:
    """Return the package that has an id if the package `is_ours` and is not installed, else None."""
    package = package_of(id)
    return package if package is not None and package.is_ours and not package.is_there else None


def _registered() -> Iterator[Entry]:
    for id, spec in gymnasium.registry.items():
        make = spec.entry_point
        module = make.partition(":")[0] if isinstance(make, str) else getattr(make, "__module__", "")
        is_gone = id == "Pusher-v4" or (not isinstance(make, str) and module.startswith("gymnasium."))  # mujoco<3
        if is_gone or module.startswith(("drl_cli.", "shimmy.")):  # drl_cli registers only probes for tests
            continue
        family = module.removeprefix("gymnasium.envs.").partition(".")[0]
        needed, install = NEEDS.get(family, (None, ""))
        yield Entry(id, family, None if needed is None or _is_there(needed) else install)


def _of_package(package: Package) -> list[Entry]:
    """Return all games of an installed Atari or MinAtar package; for other packages, return only the example."""
    if package.is_ours and package.is_there and not package.registers:
        return [Entry(id, package.module, None) for id in games() if re.fullmatch(package.names, id)]
    id = package.example if package.is_ours else f"{package.module}:{package.example}"
    return [Entry(str(id), package.module, None if package.is_there else package.install)]


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
