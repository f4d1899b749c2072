"""Takes back what a run recorded after the moment that it is resumed from, so that no curve goes backwards."""

import csv
import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

HEAD, FOOT = struct.calcsize("<QI"), struct.calcsize("<I")  # of a TFRecord: length and its checksum; the data's


def cut_back(folder: Path, env_steps: int) -> None:
    """Remove from a run's records all beyond `env_steps`, and what was not written to its end."""
    _rewrite(folder / "metrics.jsonl", partial(_lines, env_steps=env_steps))
    _rewrite(folder / "eval.csv", partial(_rows, env_steps=env_steps))
    for path in folder.glob("events.out.tfevents.*"):
        _rewrite(path, partial(_events, env_steps=env_steps))
    for path in folder.glob("videos/eval_*.gif"):
        if int(path.stem.removeprefix("eval_")) > env_steps:
            path.unlink()


def _rewrite(path: Path, keep: Callable[[bytes], Iterator[bytes]]) -> None:
    """Replace a file, where it exists, by what is kept of it; nothing changes when that is all."""
    if not path.exists():
        return
    content = path.read_bytes()
    kept = b"".join(keep(content))
    if kept != content:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(kept)
        os.replace(draft, path)


def _lines(content: bytes, env_steps: int) -> Iterator[bytes]:
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n") and json.loads(line)["env_steps"] <= env_steps:
            yield line


def _rows(content: bytes, env_steps: int) -> Iterator[bytes]:
    lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    rows = list(csv.DictReader(io.StringIO(b"".join(lines).decode())))
    yield from lines[:1]
    for line, row in zip(lines[1:], rows, strict=True):
        if int(row["env_steps"]) <= env_steps:
            yield line


def _events(content: bytes, env_steps: int) -> Iterator[bytes]:
    from tensorboard.compat.proto.event_pb2 import Event

    start = 0
    while start + HEAD <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + HEAD + length + FOOT
        if end > len(content):
            return
        if Event.FromString(content[start + HEAD : end - FOOT]).step <= env_steps:
            yield content[start:end]
        start = end
