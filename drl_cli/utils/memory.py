"""Free memory: what the machine, the process's container and the process's own limit leave."""

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
"""The process's control groups, one line each: `4:memory:/a/b` in version 1, `0::/a/b` in version 2."""
FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""The files with limit and use of a group, and the number in memory.stat that Linux frees when memory is short."""


def free_memory() -> int:
    """Return the bytes that this process can still allocate."""
    limits: list[int] = [psutil.virtual_memory().available, *_groups()]
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:  # ulimit -v counts reserved memory, used or not
        limits.append(most - psutil.Process().memory_info().vms)
    return max(0, min(limits))


def _groups() -> Iterator[int]:
    """Yield the free memory of each control group with a limit that the process is in, in bytes."""
    for line in _text(OWN_GROUPS).splitlines():
        _, kind, path = line.split(":", 2)
        if kind not in FILES:
            continue
        own = Path(path.lstrip("/"))
        for folder in dict.fromkeys([own, *own.parents]):
            limit, used, stat = (_text(CGROUP / kind / folder / name) for name in (*FILES[kind][:2], "memory.stat"))
            numbers = dict(pair.split(" ", 1) for pair in stat.splitlines() if " " in pair)
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + int(numbers.get(FILES[kind][2], 0))


def _text(path: Path) -> str:
    """Return the text of a file; empty if it can't be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
