"""A run's folder as other commands see it: what the run was told, how it stands, what its evaluations found."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from drl_cli.runs.curve import Curve, read_curve
from drl_cli.utils.locks import is_locked

RUN_LOCK = ".lock"
SWEEP_FILE = "sweep.json"
"""A file in the run's folder that is locked as long as a process trains there."""
TAIL_BYTES = 1 << 16  # of metrics.jsonl; a report is shorter

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times faster, where it is there


@dataclass(frozen=True)
class Run:
    """Reads each file when it is asked for, and keeps what it read; `status` and `last_report` are always read anew.

    Files that are missing, cut off or of an older version are no errors: what they would have said is empty.
    """

    folder: Path

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @property
    def status(self) -> str:
        """As run.json has it (running, done, interrupted, failed, diverged), or killed: running, but no process is."""
        is_alive = is_locked(self.folder / RUN_LOCK)  # first: a run that ends now writes how, then lets the lock go
        status = str(read_json(self.folder / "run.json").get("status", "unknown"))
        return "killed" if status == "running" and not is_alive else status

    @property
    def last_report(self) -> dict[str, Any]:
        """The last complete line of metrics.jsonl; empty before the first."""
        try:
            with (self.folder / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        except OSError:
            return {}
        return _mapping(lines[-1]) if lines else {}

    @cached_property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return read_json(self.folder / "run.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json, which a run writes at its end."""
        return read_json(self.folder / "summary.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Dotted key -> value of config.yaml, as it was written: an older version may have had other keys."""
        try:
            node = yaml.load((self.folder / "config.yaml").read_text(), Loader)
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return flat(node) if isinstance(node, Mapping) else {}

    @cached_property
    def curve(self) -> Curve:
        """The evaluations so far, from eval.csv."""
        return read_curve(self.folder / "eval.csv")

    @cached_property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return int(self.summary.get("env_steps") or self.last_report.get("env_steps") or 0)

    @cached_property
    def wall_s(self) -> float:
        """Seconds so far, from the start of the process, those before a resume included."""
        evaluated = self.curve.wall_s[-1] if len(self.curve) else 0.0
        return float(self.summary.get("wall_s") or self.last_report.get("perf/wall_s") or evaluated)

    @property
    def best(self) -> float | None:
        """The highest mean return of an evaluation; None before the first."""
        return self.summary.get("best_return", self.curve.best)

    @property
    def final(self) -> float | None:
        """The last mean return."""
        return self.summary.get("final_return", self.curve.final)


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of nested mappings; an empty one has no key."""
    keys: dict[str, Any] = {}
    for name, value in node.items():
        keys |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return keys


def read_json(path: Path) -> dict[str, Any]:
    """A json file of a run; empty when it is not there (yet), cut off, or holds something else."""
    try:
        return _mapping(path.read_bytes())
    except OSError:
        return {}


def _mapping(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
