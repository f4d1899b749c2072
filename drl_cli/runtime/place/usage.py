"""Usage: processor time and memory of a run's processes, by the role that they have in it."""

import re
import socket
import time
from collections import deque
from collections.abc import Iterable

import psutil

from drl_cli.runtime.messages import ProcessUse

ROLE = re.compile(r"ray::((?:worker|proxy|replay|trainer|parameter server|manage)(?: \d+)?)(?:\.|$)")
"""Ray titles the process of a role so, from when the role is built; with the method's name while a call runs."""
LOOKS = 11
"""Looks over which the processors of a role are averaged: ten reports of a run."""
TELL_S = 1.0
"""Seconds between two times that a role says what its process has used."""

Key = tuple[str, int, float]
"""A process: its host, its id, when it began; ids are used again."""


class Usage:
    """What is seen or told: what a process that ended has used counts with its role from then on.

    `main` is the process itself. It and all that it started is seen; of these, `ray` is what has no role. On a cluster
    roles are started by others, and maybe elsewhere: they tell.
    """

    def __init__(self, main: psutil.Process | None = None) -> None:
        self.main = main or psutil.Process()
        self.host = socket.gethostname()
        self._uses: dict[Key, ProcessUse] = {}
        self._present: dict[Key, ProcessUse] = {}  # that may be running
        self._seen: set[tuple[str, int]] = set()
        self._looks: deque[tuple[float, dict[Key, float]]] = deque(maxlen=LOOKS)  # when, and the seconds used by then
        self._peak: dict[str, int] = {}

    def sample(self) -> int:
        """Look; returns the bytes that all have in memory together, shared pages counted each time."""
        self._present = {key: use for key, use in self._present.items() if key[:2] not in self._seen}
        self._seen = set()
        for process in (self.main, *self.main.children(recursive=True)):
            try:
                with process.oneshot():
                    use = _use(process, self.host, self.role(process))
            except psutil.Error:  # it ended while we were looking
                continue
            self._seen.add((use.host, use.pid))
            self._note(use)
        self._looks.append((time.monotonic(), {key: use.cpu_s for key, use in self._present.items()}))
        rss: dict[str, int] = {}
        for use in self._present.values():
            rss[use.role] = rss.get(use.role, 0) + use.rss
        self._peak |= {role: max(size, self._peak.get(role, 0)) for role, size in rss.items()}
        return sum(rss.values())

    def tell(self, uses: Iterable[ProcessUse]) -> None:
        """What roles say of their own processes; of those that are seen it is known."""
        for use in uses:
            if (use.host, use.pid) not in self._seen:
                others = [key for key, other in self._present.items() if other.role == use.role]
                for key in others:  # the process that had this role before
                    del self._present[key]
                self._note(use)

    def by_role(self) -> dict[str, dict[str, float]]:
        """Processor seconds so far, and the most megabytes that were there, by role."""
        table = {role: {"cpu_s": 0.0, "peak_rss_mb": size / 2**20} for role, size in sorted(self._peak.items())}
        for use in self._uses.values():
            table.setdefault(use.role, {"cpu_s": 0.0, "peak_rss_mb": 0.0})["cpu_s"] += use.cpu_s
        return table

    def now(self) -> dict[str, dict[str, float]]:
        """By kind of role: how many processes there are, the processors that they use, their megabytes.

        Processors are those over the last LOOKS looks; they are missing after the first.
        """
        table: dict[str, dict[str, float]] = {}
        for key, use in sorted(self._present.items(), key=lambda item: item[1].role):
            kind = table.setdefault(use.role.rstrip(" 0123456789"), {"processes": 0, "rss_mb": 0.0})
            kind["processes"] += 1
            kind["rss_mb"] += use.rss / 2**20
            seen = [(moment, used[key]) for moment, used in self._looks if key in used]
            if len(seen) > 1:
                (since, before), (until, after) = seen[0], seen[-1]
                kind["cores"] = kind.get("cores", 0.0) + (after - before) / (until - since)
        return table

    def role(self, process: psutil.Process) -> str:
        """What a process of the run is in it."""
        return "main" if process == self.main else role_of(process) or "ray"

    def _note(self, use: ProcessUse) -> None:
        key = (use.host, use.pid, use.began)
        self._uses[key] = self._present[key] = use


class OwnUse:
    """Lets a role say what its process uses, at most every TELL_S: looking takes 50 us."""

    def __init__(self) -> None:
        self._next = 0.0

    def take(self) -> tuple[ProcessUse, ...]:
        """What there is to say now: nothing where it was said just before, or the process is not a role's own."""
        moment = time.monotonic()
        if moment < self._next:
            return ()
        self._next = moment + TELL_S
        process = psutil.Process()
        role = role_of(process)
        return () if role is None else (_use(process, socket.gethostname(), role),)


def role_of(process: psutil.Process) -> str | None:
    """The role that a process has, by its title."""
    title = process.cmdline()
    found = ROLE.match(title[0]) if title else None
    return found[1] if found else None


def _use(process: psutil.Process, host: str, role: str) -> ProcessUse:
    used = process.cpu_times()
    return ProcessUse(
        role, host, process.pid, process.create_time(), used.user + used.system, process.memory_info().rss
    )
