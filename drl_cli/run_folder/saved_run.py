"""Run: read the command, config, status, progress and evaluations of a run from the run's folder."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from drl_cli.metrics.status import STATUS_FILE
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.evaluations import Curve, read_curve, read_rows
from drl_cli.settings.conf import LOADER
from drl_cli.types import flatten
from drl_cli.utils.files import is_locked, read_file, regular
from drl_cli.utils.run_clock import Unit

SECTION = re.compile(r"^(?=\w+:)", re.MULTILINE)
"""The start of each section of a config.yaml: a key that is not indented."""
TAIL_BYTES = 1 << 16  # bytes that are read from the end of metrics.jsonl; the last report is shorter


@dataclass(frozen=True)
class Run:
    """The content of a run's folder. It is read at first use and then cached, except `status` and `last_report`.

    Missing and truncated files are not errors. Their values are empty.
    """

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def status(self) -> str:
        """The status in run.json, but "killed" if the status is "running" and no process trains."""
        is_alive = is_locked(self.folder / RUN_LOCK)  # checked first: a run writes its status, then unlocks
        status = str(read_json(self.folder / "run.json").get("status", "unknown"))
        return "killed" if status == "running" and not is_alive else status

    @property
    def last_report(self) -> dict[str, Any]:
        """The last complete line of metrics.jsonl that is not damaged, or {} if there is none."""
        try:
            with open(self.folder / "metrics.jsonl", "rb", opener=regular) as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        except OSError:
            return {}
        return next(filter(None, map(_mapping, reversed(lines))), {})

    @cached_property
    def record(self) -> dict[str, Any]:
        return read_json(self.folder / "run.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.folder / "summary.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The values of config.yaml by dotted key. A run of an older drl-cli may have other keys.

        Without a preset, `algo.preset` is the name of the algorithm.
        """
        try:
            keys = read_keys(read_file(self.folder / "config.yaml").decode())
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return keys | {"algo.preset": keys.get("algo.preset") or keys["algo.name"]} if "algo.name" in keys else keys

    @cached_property
    def curve(self) -> Curve:
        return read_curve(self.folder / "eval.csv", self.unit)

    @property
    def unit(self) -> Unit:
        """What the positions of the run count."""
        return "opt_steps" if self.config.get("mode") == "offline" else "env_steps"

    @cached_property
    def position(self) -> int:
        return self._count(self.unit)

    @cached_property
    def env_steps(self) -> int:
        return self._count("env_steps")

    @cached_property
    def opt_steps(self) -> int:
        return self._count("opt_steps")

    @cached_property
    def wall_s(self) -> float:
        """The wall-clock time of training so far [s], including the time before a resume."""
        evaluated = self.curve.wall_s[-1] if len(self.curve) else 0.0
        known = self.last_report.get("perf/wall_s"), read_json(self.folder / STATUS_FILE).get("wall_s"), evaluated
        return float(self.summary.get("wall_s") or max(filter(None, known), default=0.0))

    def _count(self, unit: Unit) -> int:
        """Return the count in summary.json or, before the run's end, the larger one of its last report and status."""
        known = (last.get(unit) for last in (self.last_report, read_json(self.folder / STATUS_FILE)))
        return int(self.summary.get(unit) or max(filter(None, known), default=0))

    @property
    def best(self) -> float | None:
        return self.summary.get("best_return", self.curve.best)

    @property
    def final(self) -> float | None:
        return self.summary.get("final_return", self.curve.final)

    @property
    def score(self) -> float | None:
        """The normalised score of `final`, or None without reference returns (`data.reference`)."""
        reference = self.config.get("data.reference")
        if not reference or self.final is None:
            return None
        from drl_cli.data.dataset import normalised  # most commands do not need it

        return normalised(self.final, reference)


def read_keys(text: str) -> dict[str, Any]:
    """Return the values of a config.yaml by dotted key. Raise YAMLError if it is damaged.

    Each section is parsed apart and cached, because most sections are equal in many runs and yaml is slow.
    """
    try:
        sections = [_section(part) for part in SECTION.split(text)]
    except yaml.YAMLError:  # a section may use an anchor of another one
        return dict(_section(text))
    return {key: value for section in sections for key, value in section.items()}


@lru_cache(maxsize=4096)
def _section(text: str) -> dict[str, Any]:
    node = yaml.load(text, LOADER)
    return flatten(node) if isinstance(node, Mapping) else {}


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a json file, or {} if the file is missing, truncated or contains no object."""
    try:
        return _mapping(read_file(path))
    except OSError:
        return {}


def _mapping(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


COLUMNS = {"env": "env.name", "algo": "algo.preset", "mode": "mode", "seed": "seed"}
"""The columns that say which run it is, and their keys in the config of the run."""

ALWAYS = ("run", *COLUMNS, "env_steps", "wall_s", "mean")


def columns_of(folders: Sequence[Path]) -> dict[str, list[Any]]:
    """Return the lines of the eval.csv of all runs as columns. A number that a line does not have is NaN.

    Damaged lines are left out, as in `read_rows`. Without any line, the columns are those of ALWAYS.
    """
    rows = [row for folder in folders for row in _rows(Run(folder))]
    names = dict.fromkeys(name for row in rows for name in row) or ALWAYS
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


def _rows(run: Run) -> list[dict[str, Any]]:
    which = {"run": run.id, **{name: run.config.get(key) for name, key in COLUMNS.items()}}
    found = []
    for cells in read_rows(run.folder / "eval.csv"):
        with suppress(ValueError):  # a damaged cell
            found.append(which | {name: _number(cell) for name, cell in cells.items()})
    return found


def _number(cell: str) -> float | int:
    """Return the number in a cell, or NaN for an empty cell. Raise ValueError for another text."""
    if not cell:
        return math.nan
    value = float(cell)
    return int(value) if value.is_integer() and "." not in cell and "e" not in cell.lower() else value
