"""Usage: CPU time and memory of a run's processes, by role."""

import re
import socket
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import psutil

from drl_cli.runtime.messages import ProcessKey, ProcessUse
from drl_cli.runtime.place.handles import ActorDied, Handle, Ref, get, wait

ROLE = re.compile(r"ray::((?:worker|proxy|replay|trainer|reanalyzer|parameter server|manage)(?: \d+)?)(?:\.|$)")
"""The title that Ray gives to the process of a role. During a call, the name of the method follows."""
NUMBER = " 0123456789"
"""The characters at the end of a role's name that are not its kind: `worker 3` is a worker."""
LOOKS = 11
"""Number of samples over which the processor use is averaged: ten intervals between reports."""

Kinds: TypeAlias = dict[str, dict[str, float]]
"""Numbers by name, for each kind of role."""


class Usage:
    """Measures the processor time and memory of a run's processes. The time of a role includes ended processes.

    `sample` measures the `main` process and its descendants. A descendant without a role is counted as "ray". On a
    cluster, roles are not descendants and may run on other hosts: `tell` records what they answer to AskedUses.
    """

    def __init__(self, main: psutil.Process | None = None) -> None:
        self.main = main or psutil.Process()
        self.host = socket.gethostname()
        self._uses: dict[ProcessKey, ProcessUse] = {}
        self._present: dict[ProcessKey, ProcessUse] = {}  # processes that may still run
        self._seen: set[tuple[str, int]] = set()
        self._looks: deque[tuple[float, dict[ProcessKey, float]]] = deque(maxlen=LOOKS)  # (time, CPU time by process)
        self._peak: dict[str, int] = {}

    def sample(self) -> int:
        """Measure the processes. Return their total memory [bytes], in which shared pages count several times."""
        self._present = {key: use for key, use in self._present.items() if key[:2] not in self._seen}
        self._seen = set()
        for process in (self.main, *self.main.children(recursive=True)):
            try:
                with process.oneshot():
                    use = use_of(process, self.host, "main" if process == self.main else role_of(process) or "ray")
            except psutil.Error:  # the process ended during the measurement
                continue
            self._seen.add((use.key.host, use.key.pid))
            self._uses[use.key] = self._present[use.key] = use
        self._looks.append((time.monotonic(), {key: use.cpu_s for key, use in self._present.items()}))
        rss: Counter[str] = Counter()
        for use in self._present.values():
            rss[use.role] += use.rss
        self._peak |= {role: max(size, self._peak.get(role, 0)) for role, size in rss.items()}
        return rss.total()

    def tell(self, uses: Iterable[ProcessUse]) -> None:
        """Record the use that roles report of their processes. Skip processes that `sample` measures itself."""
        for use in uses:
            if (use.key.host, use.key.pid) not in self._seen:
                # a role has one process, so forget the process from before a restart
                self._present = {key: other for key, other in self._present.items() if other.role != use.role}
                self._uses[use.key] = self._present[use.key] = use

    def by_role(self) -> dict[str, dict[str, float]]:
        """Return the CPU seconds used so far and the peak memory [MB] of each role."""
        table = {role: {"cpu_s": 0.0, "peak_rss_mb": size / 2**20} for role, size in sorted(self._peak.items())}
        for use in self._uses.values():
            table.setdefault(use.role, {"cpu_s": 0.0, "peak_rss_mb": 0.0})["cpu_s"] += use.cpu_s
        return table

    def by_node(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the number of `processes` so far and their CPU seconds, by host and kind of role."""
        table: dict[str, dict[str, dict[str, float]]] = {}
        for use in sorted(self._uses.values(), key=lambda use: use.role):
            kind = table.setdefault(use.key.host, {}).setdefault(
                use.role.rstrip(NUMBER), {"processes": 0, "cpu_s": 0.0}
            )
            kind["processes"] += 1
            kind["cpu_s"] += use.cpu_s
        return table

    def forget(self, roles: Iterable[str]) -> None:
        """Leave these roles, whose node is gone, out of `now`."""
        gone = set(roles)
        self._present = {key: use for key, use in self._present.items() if use.role not in gone}

    def now(self) -> tuple[Kinds, dict[str, Kinds]]:
        """Return `processes`, `rss_mb` and `cores` of each kind of role: on all hosts, and by host.

        `cores` is a mean over LOOKS samples.
        """
        everywhere: Kinds = {}
        by_host: dict[str, Kinds] = {host: {} for host in sorted({use.key.host for use in self._present.values()})}
        for key, use in sorted(self._present.items(), key=lambda item: item[1].role):
            seen = [(moment, used[key]) for moment, used in self._looks if key in used]
            for table in (everywhere, by_host[use.key.host]):
                kind = table.setdefault(use.role.rstrip(NUMBER), {"processes": 0, "rss_mb": 0.0})
                kind["processes"] += 1
                kind["rss_mb"] += use.rss / 2**20
                if len(seen) > 1:
                    (since, before), (until, after) = seen[0], seen[-1]
                    kind["cores"] = kind.get("cores", 0.0) + (after - before) / (until - since)
        return everywhere, by_host


class AskedUses:
    """Asks roles for the use of their processes. A role that is busy for long is asked again only after its answer."""

    def __init__(self) -> None:
        self.pending: dict[Ref[list[ProcessUse]], Handle[Any]] = {}

    def take(self, handles: Iterable[Handle[Any]]) -> list[ProcessUse]:
        """Return the answers that have arrived, and ask all roles that owe none. Do not wait."""
        uses: list[ProcessUse] = []
        for ref in wait(list(self.pending), 0.0):
            del self.pending[ref]
            with suppress(ActorDied):
                uses += get(ref)
        asked = set(self.pending.values())
        self.pending |= {handle.uses(): handle for handle in handles if handle not in asked}
        return uses


def role_of(process: psutil.Process) -> str | None:
    """Return the role that the title of a process contains, or None."""
    title = process.cmdline()
    found = ROLE.match(title[0]) if title else None
    return found[1] if found else None


def use_of(process: psutil.Process, host: str, role: str) -> ProcessUse:
    """Measure a process."""
    began, used, rss = process.create_time(), process.cpu_times(), process.memory_info().rss
    return ProcessUse(role, ProcessKey(host, process.pid, began), used.user + used.system, rss)
