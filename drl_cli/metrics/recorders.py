"""Recorders: where reports and scores are written. Each appends to its own file in the run's folder."""

import csv
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

BUFFER_BYTES = 1 << 20  # more than any event: one is never written in part by a disk that has room for a part
Value = float | int | str | bool | None


class Recorder(Protocol):
    """Takes scalars by tag at a number of environment steps."""

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        """Write these scalars."""

    def close(self, status: str) -> None:
        """Write what is left; `status` is the run's end (done, failed, ...)."""


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
    """eval.csv: one line per evaluation, the header only when the file is new."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        is_new = not path.exists() or path.stat().st_size == 0
        self.columns = columns
        self.file = path.open("a", newline="", buffering=1)
        self.writer = csv.writer(self.file)
        if is_new:
            self.writer.writerow(columns)

    def write(self, row: Mapping[str, float]) -> None:
        """One line; raises KeyError when a column is missing."""
        self.writer.writerow([row[column] for column in self.columns])

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class TensorBoard:
    """events.out.tfevents.*: scalars over environment steps, hyperparameters in the same run.

    Written as they come: TensorBoard's own writer has a thread, which does not live through a full disk.
    """

    def __init__(self, folder: Path, hparams: Mapping[str, Value]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._api, self._metadata, self._plugin = api_pb2, metadata, plugin_data_pb2
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / name).open("xb", buffering=BUFFER_BYTES))
        self._add(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        for name, value in hparams.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                start.hparams[name].number_value = value
            else:
                start.hparams[name].string_value = str(value)
        self._hparams(metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start))

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(self._summary(value=values), env_steps)

    def close(self, status: str) -> None:
        code = self._api.STATUS_SUCCESS if status == "done" else self._api.STATUS_FAILURE
        end = self._plugin.SessionEndInfo(status=code, end_time_secs=time.time())
        self._hparams(self._metadata.SESSION_END_INFO_TAG, self._plugin.HParamsPluginData(session_end_info=end))
        self._writer.close()

    def _hparams(self, tag: str, data: object) -> None:
        value = self._summary.Value(tag=tag, metadata=self._metadata.create_summary_metadata(data))
        self._write(self._summary(value=[value]), 0)

    def _write(self, summary: object, env_steps: int) -> None:
        self._add(self._event(wall_time=time.time(), step=env_steps, summary=summary))

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()
