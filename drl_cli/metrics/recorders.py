"""The interface of recorders, and recorders for the two text files of each run."""

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO, TypeAlias

from drl_cli.metrics.status import finite
from drl_cli.optim.schedules import Unit
from drl_cli.utils.files import regular, write_csv

Value: TypeAlias = float | int | str | bool | None


@dataclass(frozen=True)
class RunInfo:
    """The run that is recorded.

    `id` is the name of the run's `folder` and stays the same after a resume. `name` is a title. `hparams` are the
    values of the config by key. `project` is the value of logger.project. `unit` is what positions count: env_steps, or
    opt_steps in a run without workers. `typed` are the keys that the user or a sweep set.
    """

    id: str
    name: str
    folder: Path
    project: str
    hparams: Mapping[str, Value]
    unit: Unit = "env_steps"
    typed: Collection[str] = ()


class Recorder(Protocol):
    """Receives reports and evaluations (`eval/...`): scalars by tag, with the number of environment steps.

    In a run without workers (mode=offline), `env_steps` is the number of updates.

    An evaluation may have fewer `env_steps` than the report before, because training continues during an evaluation.
    The constructor of a recorder in the user's code (logger.recorders) takes a RunInfo.
    """

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write these scalars."""

    def close(self, status: str) -> None:
        """Write everything that is pending. `status` is the final status of the run (done, failed, ...)."""


class VideoRecorder(Recorder, Protocol):
    """A recorder that also receives videos."""

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        """Record the animated GIF in the file `path`."""


class JsonLines:
    """Writes metrics.jsonl: one JSON object per report. NaN and infinity become null."""

    def __init__(self, path: Path, unit: Unit = "env_steps") -> None:
        self.file, self.unit = open(path, "a", buffering=1, opener=regular), unit  # noqa: SIM115

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        self.file.write(json.dumps({self.unit: env_steps, **finite(scalars)}) + "\n")

    def close(self, status: str) -> None:
        self.file.close()


class Csv:
    """Writes eval.csv: one line per evaluation. The first columns are the fixed `columns`.

    A new name gets a new last column; lines without this name have an empty cell there. Columns never change their
    order, even if a resumed run continues the file. On a full disk, the first line opens the file.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.fixed, self.columns = path, tuple(columns), list(columns)
        self.file: TextIO | None = None
        with suppress(OSError):  # a run can also start on a full disk
            self._begin()

    def write(self, row: Mapping[str, float], more: Mapping[str, float] | None = None) -> None:
        """Write one line: the fixed columns from `row`, others from `more`. Raise KeyError if `row` lacks a column."""
        values = {**(more or {}), **{column: row[column] for column in self.fixed}}
        file = self.file or self._begin()
        if new := [name for name in values if name not in self.columns]:
            with open(self.path, newline="", opener=regular) as old:
                _, *rows = csv.reader(old)
            self._rewrite([*self.columns, *new], rows)
            self.columns += new
            file.close()
            file = self._open()
        csv.writer(file).writerow([values.get(column, "") for column in self.columns])

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _begin(self) -> TextIO:
        if self.path.exists() and self.path.stat().st_size:
            with open(self.path, newline="", opener=regular) as file:
                self.columns = next(csv.reader(file))
        else:
            self._rewrite(self.columns, [])
        return self._open()

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write the file again with this header and these rows. Missing cells are empty."""
        wide = ([*row, *[""] * (len(columns) - len(row))] for row in rows)
        write_csv(self.path, columns, wide)

    def _open(self) -> TextIO:
        self.file = open(self.path, "a", newline="", buffering=1, opener=regular)  # noqa: SIM115
        return self.file
