"""TensorBoard recorder: the event file of a run, the layout of its charts, and films as animated GIFs."""

import io
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from drl_cli.metrics.recorders import RunInfo

MAX_FRAMES = 128
MAX_WIDTH = 240
"""Maximum width of a frame in pixels."""
MAX_BYTES = 900_000
MIN_MS = 20
"""Shortest duration of a frame in ms, because browsers slow down faster GIFs."""


class Film:
    """Keeps the frame of every `stride`-th step, at most `width` pixels wide. The GIF shows `fps` steps per second.

    At `most` frames, every second frame is dropped, and so it is while the GIF is larger than `most_bytes`.
    """

    def __init__(
        self,
        fps: float,
        stride: int = 1,
        width: int = MAX_WIDTH,
        most: float = MAX_FRAMES,
        most_bytes: float = MAX_BYTES,
    ) -> None:
        self.fps, self.stride, self.steps = fps, stride, 0
        self.width, self.most, self.most_bytes = width, most, most_bytes
        self.frames: list[Any] = []  # PIL.Image.Image

    def step(self, render: Callable[[], Any]) -> None:
        """Advance one step, and render if the film keeps this step. Raise ValueError if `render` returns no picture."""
        if self.steps % self.stride == 0 and len(self.frames) == self.most:
            self._thin()
        if self.steps % self.stride == 0:
            self.frames.append(_picture(render(), self.width))
        self.steps += 1

    def gif(self) -> bytes:
        while True:
            content = io.BytesIO()
            duration = max(MIN_MS, round(1000 * self.stride / self.fps))
            first, *rest = self.frames
            first.save(content, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
            if content.tell() <= self.most_bytes or not rest:
                return content.getvalue()
            self._thin()

    def _thin(self) -> None:
        self.frames, self.stride = self.frames[::2], 2 * self.stride


def size_of(gif: bytes) -> tuple[int, int]:
    """Return the width and height of a GIF."""
    width, height = struct.unpack_from("<HH", gif, 6)
    return width, height


def _picture(frame: Any, width: int) -> Any:
    """Convert a frame, uint8 `[height, width, 3]`, to a small picture with 256 colours."""
    from PIL import Image

    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ValueError(f"render() gives {got}, not uint8 [height, width, 3]")
    image = Image.fromarray(frame)
    if image.width > width:
        image = image.resize((width, max(1, image.height * width // image.width)))
    return image.quantize(256)


BUFFER_BYTES = 1 << 20
"""Larger than any event. Each event is therefore written in one call, even if the disk is almost full."""

LAYOUT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "score": {
        "return: evaluation and training": ("eval/return_mean", "rollout/return_mean"),
        "evaluation: mean, lowest, highest": ("eval/return_mean", "eval/return_min", "eval/return_max"),
        "normalised score": ("eval/normalized_score",),
        "episode length": ("eval/length_mean", "rollout/length_mean"),
        "what the environment says": (
            r"eval/(?!return_|length_|normalized_score|episodes_cut|opt_steps|version|wall_s).*",
        ),
    },
    "learning": {
        "losses": (r"train/.*loss.*",),
        "policy lag [updates]": ("async/policy_lag",),
        "updates per environment step": ("perf/updates_per_env_step",),
    },
    "speed": {
        "per second: environment steps, updates": ("perf/env_steps_per_s", "perf/opt_steps_per_s"),
        "share of time spent waiting": ("perf/worker_wait_frac", "perf/trainer_wait_frac"),
        "memory [MB]": ("system/rss_mb",),
    },
}
"""Charts of the custom scalars tab, by category. Tags are regular expressions."""

NAMES = ("name", "env.name", "algo.name", "algo.preset", "mode", "seed")
"""Keys that the tab HParams shows for each run, besides those that were typed."""
OF_OPTION = {
    "replay": "replay.sampler",
    "reward": "reward.name",
    "optimizer": "optimizer.name",
    "data": "data.source",
}
"""The key that the tab shows for a typed word that chooses an option, such as replay=prioritized."""


class TensorBoard:
    """Writes events.out.tfevents.*: scalars over environment steps, hyperparameters, layout and videos of a run.

    This class writes events itself, because the thread of TensorBoard's writer ends if the disk is full. The
    constructor only fills the buffer, so that a run can also start on a full disk. `record` writes the buffer.
    """

    def __init__(self, run: RunInfo) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.custom_scalar import layout_pb2
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._api, self._metadata, self._plugin = api_pb2, metadata, plugin_data_pb2
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((run.folder / name).open("xb", buffering=BUFFER_BYTES))
        self._add(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        shown = {*NAMES, *(OF_OPTION.get(key, key) for key in run.typed)}
        for name in (key for key in run.hparams if key in shown):
            value = run.hparams[name]
            is_number = isinstance(value, int | float)
            kind = "bool" if isinstance(value, bool) else "number" if is_number else "string"
            setattr(start.hparams[name], f"{kind}_value", value if is_number else str(value))
        self._hparams(metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start))
        categories = [
            layout_pb2.Category(
                title=category,
                chart=[layout_pb2.Chart(title=title, multiline={"tag": tags}) for title, tags in charts.items()],
            )
            for category, charts in LAYOUT.items()
        ]
        layout = layout_pb2.Layout(category=categories).SerializeToString()
        content = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[layout])
        plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="custom_scalars")
        plugin_metadata = summary_pb2.SummaryMetadata(plugin_data=plugin)
        self._write(0, tag="custom_scalars__config__", metadata=plugin_metadata, tensor=content)

    def record(self, scalars: Mapping[str, float], env_steps: int) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._add(self._event(wall_time=time.time(), step=env_steps, summary=self._summary(value=values)))
        self._writer.flush()

    def video(self, tag: str, path: Path, env_steps: int) -> None:
        content = path.read_bytes()
        width, height = size_of(content)
        image = self._summary.Image(width=width, height=height, colorspace=3, encoded_image_string=content)
        self._write(env_steps, tag=tag, image=image)
        self._writer.flush()

    def close(self, status: str) -> None:
        code = self._api.STATUS_SUCCESS if status == "done" else self._api.STATUS_FAILURE
        end = self._plugin.SessionEndInfo(status=code, end_time_secs=time.time())
        self._hparams(self._metadata.SESSION_END_INFO_TAG, self._plugin.HParamsPluginData(session_end_info=end))
        self._writer.close()

    def _hparams(self, tag: str, data: object) -> None:
        self._write(0, tag=tag, metadata=self._metadata.create_summary_metadata(data))

    def _write(self, env_steps: int, **fields: Any) -> None:
        summary = self._summary(value=[self._summary.Value(**fields)])
        self._add(self._event(wall_time=time.time(), step=env_steps, summary=summary))

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
