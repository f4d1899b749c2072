"""Remove what a run recorded after the checkpoint from which it resumes, so that no curve goes backwards."""

import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from drl_cli.utils.files import replace_file

EVENTS = "events.out.tfevents.*"
HEAD, FOOT = struct.calcsize("<QI"), struct.calcsize("<I")
"""Bytes of a TFRecord before its data (length, checksum) and after its data (checksum)."""


def truncate_records(folder: Path, env_steps: int, eval_steps: int) -> None:
    """Remove all records of a run that are incomplete or have more than `env_steps` environment steps.

    Only evaluations up to `eval_steps` environment steps are kept.
    """
    for pattern, keep in (
        ("metrics.jsonl", partial(_lines, env_steps=env_steps)),
        ("eval.csv", partial(_rows, env_steps=eval_steps)),
        (EVENTS, partial(_events, env_steps=env_steps, eval_steps=eval_steps)),
    ):
        for path in folder.glob(pattern):
            content = path.read_bytes()
            kept = b"".join(keep(content))
            if kept != content:
                replace_file(path, kept)
    for path in folder.glob("videos/eval_*.gif"):
        if int(path.stem.removeprefix("eval_")) > eval_steps:
            path.unlink()


def _lines(content: bytes, env_steps: int) -> Iterator[bytes]:
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n") and json.loads(line)["env_steps"] <= env_steps:
            yield line


def _rows(content: bytes, env_steps: int) -> Iterator[bytes]:
    for i, line in enumerate(content.splitlines(keepends=True)):
        if line.endswith(b"\n") and (i == 0 or int(line.split(b",")[0]) <= env_steps):  # env_steps is the first column
            yield line


def _events(content: bytes, env_steps: int, eval_steps: int) -> Iterator[bytes]:
    from tensorboard.compat.proto.event_pb2 import Event

    start = 0
    while start + HEAD <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + HEAD + length + FOOT
        if end > len(content):
            return
        event = Event.FromString(content[start + HEAD : end - FOOT])
        is_evaluation = any(value.tag.startswith("eval/") for value in event.summary.value)
        if event.step <= (eval_steps if is_evaluation else env_steps):
            yield content[start:end]
        start = end
