"""Aggregation, recorders, console."""

import csv
import io
import json
import math
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drl_cli.metrics.aggregation import Means, spread
from drl_cli.metrics.console import Console, bottleneck
from drl_cli.metrics.recorders import Csv, JsonLines, RunInfo
from drl_cli.metrics.tensorboard import TensorBoard

SCALARS = {
    "rollout/return_mean": -12.34,
    "perf/env_steps_per_s": 812.4,
    "perf/opt_steps_per_s": 101.6,
    "perf/updates_per_env_step": 0.125,
    "perf/worker_wait_frac": 0.0,
    "perf/trainer_wait_frac": 0.0,
}
SCORE = {"mean": 201.5, "std": 3.25, "min": 195.0, "max": 205.0, "episodes": 10}


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


def test_csv_has_one_header(tmp_path):
    path = tmp_path / "eval.csv"
    for step in (1, 2):
        scores = Csv(path, ("env_steps", "mean"))
        scores.write({"mean": step / 2, "env_steps": step, "more": 0})
        with pytest.raises(KeyError):
            scores.write({"mean": 1.0})
        scores.close()
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [["env_steps", "mean"], ["1", "0.5"], ["2", "1.0"]]


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


def make_console(total=100_000, target=200.0, period_s=0.0):
    out = io.StringIO()
    return Console(out, "title", total, target, period_s), out


def test_console_reports_one_plain_line():
    console, out = make_console()
    console.report(SCALARS, 50_000)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("step 50,000/100,000  eta 00:00:0")
    assert line.endswith("return -12.3  812 env/s  102 updates/s  ratio 0.125  both sides are busy")
    console.report({tag: value for tag, value in SCALARS.items() if tag != "rollout/return_mean"}, 0)
    assert "return nan" in out.getvalue().splitlines()[1]
    console.close()
    assert "\x1b" not in out.getvalue()


def test_console_keeps_its_period():
    console, out = make_console(period_s=1e6)
    console.report(SCALARS, 50_000)
    assert out.getvalue() == ""


def test_console_evaluation_lines():
    console, out = make_console()
    console.evaluation(SCORE, 20_000, is_best=True)
    console.evaluation(SCORE | {"mean": 150.0}, 30_000, is_best=False)
    first, second = out.getvalue().splitlines()
    assert first == "eval at step 20,000: return 201.5 +- 3.2 [195.0, 205.0] over 10 episodes  (best)"
    assert second.endswith("episodes")
    assert console.score == "150.0 at step 30,000  best 201.5  target 200"


@pytest.mark.parametrize(("hours", "shown"), [(3, "03:"), (26, "26:"), (100, "100:")])
def test_eta(hours, shown):
    console, out = make_console(total=hours + 1)
    console.started = time.monotonic() - 3600.0  # one env step took an hour
    console.report(SCALARS, 1)
    assert f"eta {shown}" in out.getvalue()


@pytest.mark.parametrize(
    ("worker", "trainer", "opt_steps", "text"),
    [
        (0.5, 0.1, 9, "workers wait for the trainer: "),
        (0.5, 0.1, 0, "workers wait for the trainer's first updates"),
        (0.1, 0.5, 9, "the trainer waits for the workers"),
        (0.3, 0.5, 9, "the trainer waits for the workers"),
        (0.1, 0.2, 9, "both sides are busy"),
    ],
)
def test_bottleneck(worker, trainer, opt_steps, text):
    waits = {"perf/worker_wait_frac": worker, "perf/trainer_wait_frac": trainer, "perf/opt_steps": opt_steps}
    assert bottleneck(waits).startswith(text)
