"""Recorders: the interface, and the run's own two text files."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from drl_cli.utils.replace_file import replace_file

Value: TypeAlias = float | int | str | bool | None


@dataclass(frozen=True)
class RunInfo:
    """The run that is recorded.

    `id` is the name of the run's `folder`, also after a resume; `name` is a title. `hparams` are the config's values by
    key, `project` is the value of logger.project.
    """

    id: str
    name: str
    folder: Path
    project: str
    hparams: Mapping[str, Value]


class Recorder(Protocol):
    """Receives reports and evaluations (`eval/...`): scalars by tag at a number of environment steps.

    The env_steps of an evaluation may be below those of the last report, because training continues during an
    evaluation. The constructor of a user's recorder (logger.recorders) takes a RunInfo.
    """

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write these scalars."""

    def close(self, status: str) -> None:
        """Write everything that is pending; `status` is the final status (done, failed, ...)."""


class VideoRecorder(Recorder, Protocol):
    """A recorder that also takes videos."""

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        """Write an animated GIF."""


class JsonLines:
    """metrics.jsonl: one JSON object per report; NaN and infinity become null."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", buffering=1)

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        finite = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}
        self.file.write(json.dumps({"env_steps": env_steps, **finite}) + "\n")

    def close(self, status: str) -> None:
        self.file.close()


class Csv:
    """eval.csv: one line per evaluation, starting with the fixed `columns`.

    A new name gets a column at the end; lines without the name have an empty cell. No column ever moves, also in a file
    that a resumed run continues.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.fixed, self.columns = path, tuple(columns), list(columns)
        if path.exists() and path.stat().st_size:
            with path.open(newline="") as file:
                self.columns = next(csv.reader(file))
        else:
            self._rewrite(self.columns, [])
        self._open()

    def write(self, row: Mapping[str, float], more: Mapping[str, float] | None = None) -> None:
        """Write `row`, then the other names in `more`; raise KeyError if a fixed column is missing in `row`."""
        values = {**(more or {}), **{column: row[column] for column in self.fixed}}
        if new := [name for name in values if name not in self.columns]:
            with self.path.open(newline="") as file:
                _, *rows = csv.reader(file)
            self._rewrite([*self.columns, *new], rows)
            self.columns += new
            self.file.close()
            self._open()
        self.writer.writerow([values.get(column, "") for column in self.columns])

    def close(self) -> None:
        self.file.close()

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Replace the file by the columns and these rows; missing cells are empty."""
        content = io.StringIO(newline="")
        wide = ([*row, *[""] * (len(columns) - len(row))] for row in rows)
        csv.writer(content).writerows([columns, *wide])
        replace_file(self.path, content.getvalue().encode())

    def _open(self) -> None:
        self.file = self.path.open("a", newline="", buffering=1)
        self.writer = csv.writer(self.file)
