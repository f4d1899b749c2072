"""Free memory, within the limits of the machine, the container and the process."""

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
