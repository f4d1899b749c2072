"""Aggregation and recorders."""

import json
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drl_cli.metrics.aggregation import Means, spread
from drl_cli.metrics.recorders import JsonLines, RunInfo
from drl_cli.metrics.tensorboard import TensorBoard


def test_means_are_weighted_and_start_anew():
    means = Means()
    means.add({"loss": 1.0, "only_once": 5.0})
    means.add({"loss": 4.0}, weight=3)
    assert means.take() == {"loss": 3.25, "only_once": 5.0}
    assert means.take() == {}
    means.add({"loss": 2.0})
    assert means.take() == {"loss": 2.0}


def test_spread():
    assert spread("r", [1.0, 2.0, 6.0]) == {"r_mean": 3.0, "r_min": 1.0, "r_max": 6.0, "r_median": 2.0}
    assert spread("r", iter([4])) == {"r_mean": 4.0, "r_min": 4.0, "r_max": 4.0, "r_median": 4.0}
    assert spread("r", []) == {}


def test_json_lines_are_valid_json_and_appended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (10, 20):
        recorder = JsonLines(path)
        recorder.record({"a": 1.5, "b": math.nan, "c": -math.inf, "d": 3}, step)
        assert path.read_text().endswith("\n")  # on disk at once
        recorder.close("done")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert lines == [{"env_steps": step, "a": 1.5, "b": None, "c": None, "d": 3} for step in (10, 20)]


@pytest.mark.parametrize(("status", "code"), [("done", "STATUS_SUCCESS"), ("failed", "STATUS_FAILURE")])
def test_tensorboard_is_readable(tmp_path, status, code):
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    hparams = {"lr": 0.5, "layers": 2, "flag": True, "name": "x", "none": None}
    board = TensorBoard(RunInfo("id", "name", tmp_path, "project", hparams))
    board.record({"a/b": 1.5, "c": 2.0}, 1000)
    board.record({"a/b": math.nan}, 3_000_000_000)
    board.close(status)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["a/b", "c"]
    first, second = events.Scalars("a/b")
    assert (first.step, first.value) == (1000, 1.5)
    assert second.step == 3_000_000_000
    assert math.isnan(second.value)
    content = events.SummaryMetadata
    start, end = (
        plugin_data_pb2.HParamsPluginData.FromString(content(tag).plugin_data.content)
        for tag in (metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG)
    )
    hparams = start.session_start_info.hparams
    assert (hparams["lr"].number_value, hparams["layers"].number_value) == (0.5, 2.0)
    assert hparams["flag"].bool_value is True
    assert (hparams["name"].string_value, hparams["none"].string_value) == ("x", "None")
    assert end.session_end_info.status == api_pb2.Status.Value(code)
