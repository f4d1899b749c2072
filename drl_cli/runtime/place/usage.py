"""Usage: processor time and memory of a process and all that it started, by the role that they have in a run."""

import re

import psutil

ROLE = re.compile(r"ray::((?:worker|proxy|replay|trainer|parameter server|manage)(?: \d+)?)(?:\.|$)")
"""Ray titles the process of a role so, from when the role is built; with the method's name while a call runs."""


class Usage:
    """What is seen whenever somebody looks: what a process that ended has used counts with its role from then on.

    `main` is the process itself; `ray` is all that it started and that has no role. What runs on other nodes, or was
    started by others, is not seen.
    """

    def __init__(self, main: psutil.Process | None = None) -> None:
        self.main = main or psutil.Process()
        self._cpu_s: dict[psutil.Process, tuple[str, float]] = {}
        self._peak: dict[str, int] = {}

    def sample(self) -> int:
        """Look; returns the bytes that all have in memory together, shared pages counted each time."""
        rss: dict[str, int] = {}
        for process in (self.main, *self.main.children(recursive=True)):
            try:
                with process.oneshot():
                    role, used = self.role(process), process.cpu_times()
                    rss[role] = rss.get(role, 0) + process.memory_info().rss
            except psutil.Error:  # it ended while we were looking
                continue
            self._cpu_s[process] = (role, used.user + used.system)
        self._peak |= {role: max(size, self._peak.get(role, 0)) for role, size in rss.items()}
        return sum(rss.values())

    def by_role(self) -> dict[str, dict[str, float]]:
        """Processor seconds so far, and the most megabytes that were seen, by role."""
        table = {role: {"cpu_s": 0.0, "peak_rss_mb": size / 2**20} for role, size in sorted(self._peak.items())}
        for role, seconds in self._cpu_s.values():
            table.setdefault(role, {"cpu_s": 0.0, "peak_rss_mb": 0.0})["cpu_s"] += seconds
        return table

    def role(self, process: psutil.Process) -> str:
        """What a process of the run is in it."""
        if process == self.main:
            return "main"
        title = process.cmdline()
        found = ROLE.match(title[0]) if title else None
        return found[1] if found else "ray"
