"""Remove what a run recorded after the checkpoint from which it resumes, so that no curve goes backwards."""

import csv
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from drl_cli.optim.schedules import Unit
from drl_cli.utils.files import replace_file

METRICS, EVALUATIONS, EVENTS, VIDEOS = "metrics.jsonl", "eval.csv", "events.out.tfevents.*", "videos/eval_*[0-9].gif"
PATTERNS = METRICS, EVALUATIONS, EVENTS, VIDEOS
HEAD, FOOT = struct.calcsize("<QI"), struct.calcsize("<I")
"""Bytes of a TFRecord before its data (length, checksum) and after its data (checksum)."""


def record_files(run: Path) -> list[Path]:
    """Return the files to which a run appends its results, and its videos."""
    return [path for pattern in PATTERNS for path in sorted(run.glob(pattern))]


def is_record(name: str) -> bool:
    """Return whether a path, relative to a run's folder, is one of `record_files`."""
    parts = PurePath(name).parts
    return any(PurePath(name).match(each) and len(parts) == len(PurePath(each).parts) for each in PATTERNS)


@dataclass(frozen=True)
class Cut:
    """A position of a run's clock, which counts in `unit`. Records after it are removed.

    Evaluations are kept up to `eval_position`. Damaged records are removed, too: a kill or a power cut may leave half a
    record or random bytes.
    """

    position: int
    eval_position: int
    unit: Unit = "env_steps"

    def apply(self, run: Path) -> list[str]:
        """Cut all records of a run. Return a line for each file with damaged records."""
        problems = []
        for path in record_files(run):
            if path.match(VIDEOS):
                if int(path.stem.removeprefix("eval_")) > self.eval_position:
                    path.unlink()
                continue
            content = path.read_bytes()
            try:
                kept, num_damaged = self._cut(path.name, content)
            except (ValueError, csv.Error):
                aside = path.rename(path.with_name(f"{path.name}.damaged"))
                problems.append(f"{path.name}: the first line is damaged; the file is now {aside.name}")
                continue
            if num_damaged:
                problems.append(f"{path.name}: {num_damaged} damaged record{'s' * (num_damaged > 1)} skipped")
            if kept != content:
                replace_file(path, kept)
        return problems

    def _cut(self, name: str, content: bytes) -> tuple[bytes, int]:
        """Return the records to keep, and the number of damaged ones. Raise ValueError for a csv file without head."""
        read = {METRICS: self._lines, EVALUATIONS: self._rows}.get(name, self._events)
        kept, num_damaged = list[bytes](), 0
        for record, position, last in read(content):
            num_damaged += position is None
            if position is not None and position <= last:
                kept.append(record)
        return b"".join(kept), num_damaged

    def _lines(self, content: bytes) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield each line, its position, or None if it is damaged, and the last position to keep."""
        for line in content.splitlines(keepends=True):
            yield line, json_position(line, self.unit), self.position

    def _rows(self, content: bytes) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield each row as `_lines` does. A row has as many cells as the first line."""
        if not content:
            return
        head, *lines = content.splitlines(keepends=True)
        names = next(csv.reader([head.decode()]))
        column = names.index(self.unit)
        yield head, 0, 0
        for line in lines:
            cells = line.split(b",")
            is_whole = line.endswith(b"\n") and len(cells) == len(names) and re.fullmatch(rb"-?\d+", cells[column])
            yield line, int(cells[column]) if is_whole else None, self.eval_position

    def _events(self, content: bytes) -> Iterator[tuple[bytes, int | None, int]]:
        """Yield each event as `_lines` does. Without the length of an event, the rest of the file can't be read."""
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event

        start = 0
        while start < len(content):
            head = content[start : start + HEAD]
            end = start + HEAD + struct.unpack("<QI", head)[0] + FOOT if len(head) == HEAD else len(content) + 1
            try:
                event = Event.FromString(content[start + HEAD : end - FOOT]) if end <= len(content) else None
            except DecodeError:
                event = None
            is_evaluation = event and any(value.tag.startswith("eval/") for value in event.summary.value)
            last = self.eval_position if is_evaluation else self.position
            yield content[start:end], event and event.step, last
            start = end


def json_position(line: bytes, unit: Unit) -> int | None:
    """Return the position in a line of metrics.jsonl, or None if the line is damaged."""
    try:
        position = json.loads(line)[unit] if line.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):
        return None
    return position if isinstance(position, int) else None
