"""Which environments there are, and what each needs that is not installed here; none of them is imported."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium

NEEDS = {
    "box2d": ("Box2D", "gymnasium[box2d]"),
    "mujoco": ("mujoco", "drl-cli[mujoco]"),
    "phys2d": ("jax", "gymnasium[jax]"),
    "tabular": ("jax", "gymnasium[jax]"),
}
"""Families of Gymnasium's own: the module that they import, and what to install for it."""

PACKAGES = (
    ("ale_py", "drl-cli[atari]", "ale_py:ALE/Pong-v5"),
    ("minigrid", "minigrid", "minigrid:MiniGrid-Empty-5x5-v0"),
    ("highway_env", "highway-env", "highway_env:highway-v0"),
    ("gymnasium_robotics", "gymnasium-robotics", "gymnasium_robotics:FetchReach-v4"),
    ("shimmy", "shimmy[dm-control]", "shimmy:dm_control/cartpole-balance-v0"),
    ("miniworld", "miniworld", "miniworld:MiniWorld-Hallway-v0"),
)
"""Packages that bring environments: module, what to install, one of its ids as `env=` takes it."""


@dataclass(frozen=True)
class Entry:
    """An environment: its id as `env=` takes it, where it comes from, and what to install for it (None: nothing)."""

    id: str
    family: str
    missing: str | None


def entries() -> list[Entry]:
    """All that Gymnasium has, but for those that it only names to say that they are gone; then one of each package."""
    return [*sorted(_registered(), key=lambda entry: entry.id), *map(_of_package, PACKAGES)]


def _registered() -> Iterator[Entry]:
    for id, spec in gymnasium.registry.items():
        make = spec.entry_point
        module = make.partition(":")[0] if isinstance(make, str) else getattr(make, "__module__", "")
        is_gone = not isinstance(make, str) and module.startswith("gymnasium.")
        if is_gone or module.startswith("drl_cli."):  # these are for tests
            continue
        family = module.removeprefix("gymnasium.envs.").partition(".")[0]
        needed, install = NEEDS.get(family, (None, ""))
        yield Entry(id, family, None if needed is None or _is_there(needed) else install)


def _of_package(package: tuple[str, str, str]) -> Entry:
    module, install, id = package
    return Entry(id, module, None if _is_there(module) else install)


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
