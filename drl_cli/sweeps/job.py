"""Job: one training of a sweep, and what is known of it from its files."""

import fcntl
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["waiting", "running", "done", "failed", "diverged", "interrupted", "killed"]

STATUS: dict[int, Status] = {0: "done", 5: "diverged", 75: "interrupted", 130: "interrupted"}


@dataclass(eq=False)
class Job:
    """`overrides` are its part of the command line, `differs` those that not all jobs have.

    `exit_code` is None until its process has ended; it is negative where a signal ended the process.
    """

    number: int
    overrides: list[str]
    differs: dict[str, str]
    exit_code: int | None = None
    run: Path | None = None
    is_running: bool = False

    @property
    def status(self) -> Status:
        """`killed`: its process was ended by a signal that nobody can catch, or with the sweep's."""
        if self.is_running:
            return "running"
        if self.exit_code is None:
            return "killed" if self.run is not None else "waiting"
        return "killed" if self.exit_code < 0 else STATUS.get(self.exit_code, "failed")

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.exit_code == 0

    def look(self, file: Path) -> None:
        """Take from `file` which run it is, and from the run's folder how it ended."""
        if (run := read_json(file).get("run")) is not None:
            self.run = Path(run)
        if self.run is not None and not self.is_running and not is_locked(self.run):
            self.exit_code = read_json(self.run / "summary.json").get("exit_code", self.exit_code)

    def arguments(self) -> list[str]:
        """Of drl-train: to go on with its run where it has one, else to start it."""
        if self.run is not None and (self.run / "config.yaml").is_file():
            return [f"resume='{self.run}'"]
        return self.overrides

    def progress(self) -> dict[str, Any]:
        """What its run's files say: `env_steps`, `wall_s`, `best_return`, `final_return`; what is not known is None."""
        names = ("env_steps", "wall_s", "best_return", "final_return")
        if self.run is None:
            return dict.fromkeys(names)
        if summary := read_json(self.run / "summary.json"):
            return {name: summary.get(name) for name in names}
        report, (best, last, wall_s) = last_line(self.run / "metrics.jsonl"), evaluations(self.run / "eval.csv")
        values = (report.get("env_steps"), report.get("perf/wall_s", wall_s), best, last)
        return dict(zip(names, values, strict=True))


def is_locked(run: Path) -> bool:
    """Whether a process trains in this folder now."""
    with suppress(FileNotFoundError), (run / ".lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is none, or a part of one."""
    with suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(path.read_text())
        return content
    return {}


def last_line(path: Path) -> dict[str, Any]:
    """The last whole object of a file of json lines."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError):
                content: dict[str, Any] = json.loads(line)
                return content
    return {}


def returns(path: Path) -> list[float]:
    """The mean return of each evaluation in an eval.csv, in order; of a file that is being written, of whole lines."""
    return [float(row["mean"]) for row in _rows(path)]


def evaluations(path: Path) -> tuple[float | None, float | None, float | None]:
    """Best and last mean return, and the seconds at which the last was."""
    rows = _rows(path)
    means = [float(row["mean"]) for row in rows]
    return (max(means), means[-1], float(rows[-1]["wall_s"])) if rows else (None, None, None)


def _rows(path: Path) -> list[dict[str, str]]:
    with suppress(OSError):
        header, *lines = [line.split(",") for line in path.read_text().splitlines()] or [[]]
        return [dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header) and line[-1]]
    return []
