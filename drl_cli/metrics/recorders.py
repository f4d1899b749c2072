"""Recorders: where reports and scores are written. What every one of them is, and the two plain files."""

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

Value: TypeAlias = float | int | str | bool | None


@dataclass(frozen=True)
class RunInfo:
    """The run that is recorded.

    `id` is the name of its `folder` and stays the same when the run is resumed; `name` is for people. `hparams` are the
    config's values by key, `project` is what logger.project says.
    """

    id: str
    name: str
    folder: Path
    project: str
    hparams: Mapping[str, Value]


class Recorder(Protocol):
    """Takes scalars by tag at a number of environment steps: reports, and evaluations (`eval/...`) as they come.

    The env_steps of an evaluation may lie before those of the last report: a version is evaluated while training goes
    on. A recorder of the user's is made of a RunInfo (logger.recorders).
    """

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write these scalars."""

    def close(self, status: str) -> None:
        """Write what is left; `status` is the run's end (done, failed, ...)."""


class VideoRecorder(Recorder, Protocol):
    """One that takes videos, too."""

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        """Write this animated GIF."""


class JsonLines:
    """metrics.jsonl: one object per report; NaN and infinity become null."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1)

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        finite = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}
        self.file.write(json.dumps({"env_steps": env_steps, **finite}) + "\n")

    def close(self, status: str) -> None:
        self.file.close()


class Csv:
    """eval.csv: one line per evaluation. These `columns` come first and are in every line.

    A name that a line brings along beside them gets a column at the end from then on, which is empty in the lines
    before, and where it is missing later. So no column ever moves, in a file that goes on neither.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.fixed, self.columns = path, tuple(columns), list(columns)
        if path.exists() and path.stat().st_size:
            with path.open(newline="") as file:
                self.columns = next(csv.reader(file))
        else:
            self._rewrite([])
        self._open()

    def write(self, row: Mapping[str, float], more: Mapping[str, float] | None = None) -> None:
        """One line, and what there is `more`; raises KeyError when one of the columns that come first is missing."""
        values = {**(more or {}), **{column: row[column] for column in self.fixed}}
        if new := [name for name in values if name not in self.columns]:
            self._widen(new)
        self.writer.writerow([values.get(column, "") for column in self.columns])

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _widen(self, names: Sequence[str]) -> None:
        with self.path.open(newline="") as file:
            _, *rows = csv.reader(file)
        before = self.columns
        self.columns = [*before, *names]
        try:
            self._rewrite(rows)
        except OSError:  # the file is as it was
            self.columns = before
            raise
        self.file.close()
        self._open()

    def _rewrite(self, rows: Sequence[Sequence[str]]) -> None:
        """The file in one piece: the columns, and these rows, the cells that they lack empty."""
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        width = len(self.columns)
        try:
            with draft.open("w", newline="") as file:
                csv.writer(file).writerows([self.columns, *([*row, *[""] * (width - len(row))] for row in rows)])
            os.replace(draft, self.path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    def _open(self) -> None:
        self.file = self.path.open("a", newline="", buffering=1)
        self.writer = csv.writer(self.file)
