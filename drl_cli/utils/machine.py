"""What this machine has: cores, free memory, a C++ compiler, addresses and a screen. Nothing here imports torch."""

import errno
import os
import re
import resource
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from drl_cli.utils.files import PrivateFolder, base_folder, open_private


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use, or of all cores if this is unknown (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(cores())


ZEN_5 = 0x1A
"""CPU family of AMD's Zen 5, where MKL computes wide products at less than half of the processor's speed."""


def describe_processor() -> str:
    """Return Linux's description of the first CPU, or '' on other systems."""
    info = Path("/proc/cpuinfo")
    return info.read_text().partition("\n\n")[0] if info.exists() else ""


@cache
def is_amd() -> bool:
    """Return whether the CPU is one of AMD."""
    return "AuthenticAMD" in describe_processor()


def is_zen_5() -> bool:
    """Return whether the CPU is AMD's Zen 5, or a later one."""
    found = re.search(r"AuthenticAMD\s+cpu family\s*:\s*(\d+)", describe_processor())
    return found is not None and int(found[1]) >= ZEN_5


def compiler() -> str:
    """Return the name of the C++ compiler: CXX, or the system's own."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def library_folder() -> PrivateFolder:
    """Open the folder for compiled code: TORCHINDUCTOR_CACHE_DIR, or by default one in this user's private folder.

    Have torch use this folder, too. Raise PermissionError if other users could change it, because the libraries in it
    run with the rights of this user.
    """
    folder = _library_folder(os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.path)
    return folder


@cache
def _library_folder(named: str | None) -> PrivateFolder:
    return open_private(Path(named)) if named else open_private(base_folder(), ["compiled"])


CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
"""The process's control groups, one line each: `4:memory:/a/b` in version 1, `0::/a/b` in version 2."""
FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By cgroup version: files with limit and use, and the name in memory.stat of the memory that Linux can free."""


def free_memory() -> int:
    """Return the bytes that this process can still allocate."""
    limits: list[int] = [psutil.virtual_memory().available, *_groups()]
    used = psutil.Process().memory_info()
    for limit, bytes_used in ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.data)):
        most, _ = resource.getrlimit(limit)  # ulimit -v and -d: both count memory that is reserved but not used
        if most != resource.RLIM_INFINITY:
            limits.append(most - bytes_used)
    return max(0, min(limits))


def _groups() -> Iterator[int]:
    """Yield the free memory [bytes] of each control group that contains this process and has a limit."""
    for line in text_of(OWN_GROUPS).splitlines():
        _, kind, path = line.split(":", 2)
        if kind not in FILES:
            continue
        own = Path(path.lstrip("/"))
        for folder in dict.fromkeys([own, *own.parents]):
            limit, used, stat = (text_of(CGROUP / kind / folder / name) for name in (*FILES[kind][:2], "memory.stat"))
            numbers = dict(pair.split(" ", 1) for pair in stat.splitlines() if " " in pair)
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + int(numbers.get(FILES[kind][2], 0))


def text_of(path: Path) -> str:
    """Return the text of a file; empty if it can't be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def listener(host: str) -> socket.socket:
    """Return a socket that listens at a free port of the address `host` alone.

    If no interface of this machine has the address, as behind NAT, the socket listens at all addresses.
    """
    family, *_ = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server((host, 0), family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", 0), family=family)


def own_address(host: str) -> str:
    """Return the address of this machine from which it reaches `host`."""
    family, kind, *_, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing, but chooses the route
        own: str = probe.getsockname()[0]
        return own


def interface(address: str) -> str | None:
    """Return the name of the network interface that has this address, or None."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if address in {entry.address for entry in entries}), None)


DRAWING = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}


def headless() -> Mapping[str, str]:
    """Return the variables that pygame and MuJoCo need to draw without a screen, except variables that are set."""
    mujoco = {"MUJOCO_GL": "egl"} if sys.platform == "linux" and "DISPLAY" not in os.environ else {}
    return {name: value for name, value in {**DRAWING, **mujoco}.items() if name not in os.environ}


def has_display() -> bool:
    """Return whether windows can be shown. On Linux, they need an X or Wayland server."""
    return sys.platform != "linux" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


@dataclass(frozen=True)
class Node:
    """A live node of the cluster. `memory` [bytes] is available to Ray's actors. `is_here`: this process runs there.

    `gpus` is the number of GPUs that Ray has found on the node.
    """

    id: str
    address: str
    cpus: float
    memory: int = 0
    is_here: bool = False
    gpus: int = 0

    def num_workers(self, trainers: int) -> int:
        """Return the number of workers that the node offers: one per CPU that no trainer uses, at least one."""
        return max(1, int(self.cpus) - (trainers if self.is_here else 0))

    def __str__(self) -> str:
        return f"node {self.address} ({self.id[:6]})"
