"""Everything that uses parts of Ray without a stable interface: `ray._private` and `ray._raylet`.

Importing this module imports Ray, and checks that the installed version has all these parts.
"""

import logging
import os
import random
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import ray

from drl_cli.errors import ClusterUnfit

log = logging.getLogger(__name__)

TESTED = "2.52 to 2.60"
"""The versions that pyproject.toml admits. The tests pass with 2.60; with 2.52, all parts exist and a run starts."""
NEEDED = {"ray._private.utils": ("set_kill_on_parent_death_linux",)}
"""The names, by module, without which a signal would end Ray before a checkpoint is saved."""
USED = {
    "ray._private.worker": ("_global_node", "print_to_stdstream"),
    "ray._private.node": ("Node.dead_processes", "Node.start_api_server", "Node.start_log_monitor"),
    "ray._private.services": ("find_gcs_addresses",),
    "ray._private.external_storage": ("random",),
    "ray._private.utils": ("get_ray_address_file",),
    "ray._raylet": ("random", "Config.initialize"),
}
"""The names, by module, without which a run loses a convenience or notices a dead process later."""


def missing(names: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names that the installed version of Ray lacks."""
    return [f"{module}.{name}" for module, all in names.items() for name in all if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    try:
        value: Any = import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def check() -> None:
    """Raise ClusterUnfit, or print a warning, if the installed version of Ray lacks a part that this module uses."""
    for names, consequence in ((NEEDED, None), (USED, "a run uses more memory, prints more, or reacts later")):
        if lacking := missing(names):
            text = f"Ray {ray.__version__} has no {', '.join(lacking)}; drl-cli was tested with Ray {TESTED}"
            if consequence is None:
                raise ClusterUnfit([text])
            log.warning("%s. Without, %s", text, consequence)


def dead_processes() -> set[str]:
    """Return the names of Ray's processes that this process started and that died, such as raylet."""
    node: Any = getattr(ray._private.worker, "_global_node", None)
    return {name for name, _ in node.dead_processes()} if hasattr(node, "dead_processes") else set()


def stand_apart() -> None:
    """Give Ray's processes separate process groups: Ctrl-C must reach only this process, which saves a checkpoint."""
    from ray._private import utils

    end_with_parent = utils.set_kill_on_parent_death_linux

    def prepare() -> None:  # runs in the new process, before Ray's program starts
        end_with_parent()
        os.setpgid(0, 0)

    utils.set_kill_on_parent_death_linux = prepare


def draw_apart() -> None:
    """Have Ray draw from a generator of its own: workers in this process save the state of Python's global one."""
    for name in ("ray._raylet", "ray._private.external_storage"):
        with suppress(ImportError):
            setattr(import_module(name), "random", random.Random())  # noqa: B010  # mypy does not know the attribute


def read_variables() -> None:
    """Have Ray, which read its environment variables when it was imported, read them again."""
    import ray._raylet

    if hasattr(ray._raylet, "Config"):
        ray._raylet.Config.initialize("")


@contextmanager
def fewer_services() -> Iterator[None]:
    """Keep Ray from starting its dashboard and two monitors, which are unused and take 80 MB each."""
    from ray._private.node import Node

    names = ("start_api_server", "start_log_monitor", "start_monitor")
    starts = {name: getattr(Node, name) for name in names if hasattr(Node, name)}
    for name in starts:
        setattr(Node, name, lambda self, **options: None)
    try:
        yield
    finally:
        for name, start in starts.items():
            setattr(Node, name, start)


class _NoFolders(list[str]):
    """A list that stays empty."""

    def extend(self, folders: Iterable[str]) -> None:
        """Leave the folders out."""


def job_config() -> Any:  # Any: ray has no types
    """Return the settings of a job whose processes have only the import path of their PYTHONPATH.

    Otherwise Ray would put the current folder before the installed packages, and a file there would replace a library.
    """
    job = ray.job_config.JobConfig()
    job._py_driver_sys_path = _NoFolders()
    return job


def log_deaths() -> None:
    """Send Ray's messages about dead processes to the log. The user gets one line from this package instead."""
    ray._private.worker.print_to_stdstream = lambda data, **_: log.info("%s", " ".join(data["lines"]))


def own_address() -> str | None:
    """Return the address of the cluster that this user's last `ray start` on this machine started or joined.

    Return None if no file names it, or if another user could have written the file.
    """
    from ray._private import utils

    try:
        descriptor = os.open(utils.get_ray_address_file(None), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (AttributeError, OSError):
        return None
    with open(descriptor) as file:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
        return (file.read().strip() or None) if is_ours else None


def all_addresses() -> list[str]:
    """Return the addresses of all Ray clusters, of any user, whose processes run on this machine."""
    from ray._private import services

    return sorted(services.find_gcs_addresses()) if hasattr(services, "find_gcs_addresses") else []


check()
