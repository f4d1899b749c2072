"""Remove what a run recorded after the checkpoint from which it resumes, so that no curve goes backwards."""

import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from drl_cli.optim.schedules import Unit
from drl_cli.utils.files import replace_file

EVENTS = "events.out.tfevents.*"
HEAD, FOOT = struct.calcsize("<QI"), struct.calcsize("<I")
"""Bytes of a TFRecord before its data (length, checksum) and after its data (checksum)."""


def truncate_records(folder: Path, position: int, eval_position: int, unit: Unit = "env_steps") -> None:
    """Remove all records of a run that are incomplete or later than a position of its clock, which counts in `unit`.

    Only evaluations up to `eval_position` are kept.
    """
    for pattern, keep in (
        ("metrics.jsonl", partial(_lines, unit=unit, position=position)),
        ("eval.csv", partial(_rows, unit=unit, position=eval_position)),
        (EVENTS, partial(_events, position=position, eval_position=eval_position)),
    ):
        for path in folder.glob(pattern):
            content = path.read_bytes()
            kept = b"".join(keep(content))
            if kept != content:
                replace_file(path, kept)
    for path in folder.glob("videos/eval_*.gif"):
        if int(path.stem.removeprefix("eval_")) > eval_position:
            path.unlink()


def _lines(content: bytes, unit: Unit, position: int) -> Iterator[bytes]:
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n") and json.loads(line)[unit] <= position:
            yield line


def _rows(content: bytes, unit: Unit, position: int) -> Iterator[bytes]:
    column = 0  # the header has the names of the columns
    for i, line in enumerate(content.splitlines(keepends=True)):
        cells = line.strip().split(b",")
        if i == 0:
            column = cells.index(unit.encode())
        if line.endswith(b"\n") and (i == 0 or int(cells[column]) <= position):
            yield line


def _events(content: bytes, position: int, eval_position: int) -> Iterator[bytes]:
    from tensorboard.compat.proto.event_pb2 import Event

    start = 0
    while start + HEAD <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + HEAD + length + FOOT
        if end > len(content):
            return
        event = Event.FromString(content[start + HEAD : end - FOOT])
        is_evaluation = any(value.tag.startswith("eval/") for value in event.summary.value)
        if event.step <= (eval_position if is_evaluation else position):
            yield content[start:end]
        start = end
