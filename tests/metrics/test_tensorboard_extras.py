"""TensorBoard's custom scalars tab and videos, read back as its page does."""

import re

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from drl_cli.metrics.film import Film
from drl_cli.metrics.recorders import RunInfo
from drl_cli.metrics.tensorboard import LAYOUT, TensorBoard

TAGS = (
    "eval/return_mean",
    "eval/length_mean",
    "eval/success",
    "eval/wall_s",
    "train/actor_loss",
    "perf/env_steps_per_s",
)


def written(folder, write):
    board = TensorBoard(RunInfo("id", "name", folder, "project", {}))
    write(board)
    board.close("done")
    return EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()


def test_there_is_a_layout_of_charts(tmp_path):
    events = written(tmp_path, lambda board: None)
    assert "custom_scalars__config__" in events.PluginTagToContent(metadata.PLUGIN_NAME)
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == list(LAYOUT)
    shown = {
        chart.title: [tag for tag in TAGS if any(re.match(pattern, tag) for pattern in chart.multiline.tag)]
        for category in layout.category
        for chart in category.chart
    }
    assert shown["return: evaluation and training"] == ["eval/return_mean"]
    assert shown["what the environment says"] == ["eval/success"]
    assert shown["losses"] == ["train/actor_loss"]
    assert shown["per second: environment steps, updates"] == ["perf/env_steps_per_s"]


def test_a_video_is_an_animated_image(tmp_path):
    film = Film(30.0)
    for brightness in (0, 100, 200):
        film.step(lambda brightness=brightness: np.full((20, 30, 3), brightness, np.uint8))
    path = tmp_path / "x.gif"
    path.write_bytes(film.gif())
    events = written(tmp_path, lambda board: board.video("eval/video", path, 70))
    (event,) = events.Images("eval/video")
    assert (event.step, event.width, event.height, event.encoded_image_string) == (70, 30, 20, path.read_bytes())
