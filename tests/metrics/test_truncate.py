"""Later and incomplete records are removed; the other records stay byte for byte."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drl_cli.metrics.recorders import Csv, JsonLines, RunInfo
from drl_cli.metrics.tensorboard import TensorBoard
from drl_cli.metrics.truncate import truncate_records


@pytest.fixture
def run(tmp_path):
    """A run with a report every 10 steps up to 100 and an evaluation of every second version, one report later."""
    lines, scores, board = (
        JsonLines(tmp_path / "metrics.jsonl"),
        Csv(tmp_path / "eval.csv", ("env_steps", "mean")),
        TensorBoard(RunInfo("id", "name", tmp_path, "project", {"lr": 1.0})),
    )
    for step in range(10, 101, 10):
        lines.record({"perf/x": float(step)}, step)
        board.record({"perf/x": float(step)}, step)
        if step % 20 == 10 and step > 10:
            scores.write({"env_steps": step - 10, "mean": 1.5})
            board.record({"eval/return_mean": 1.5}, step - 10)
    lines.close("done")
    scores.close()
    board.close("done")
    return tmp_path


def steps(run):
    board = EventAccumulator(str(run))
    board.Reload()
    scalars = {tag: [event.step for event in board.Scalars(tag)] for tag in ("perf/x", "eval/return_mean")}
    lines = [json.loads(line)["env_steps"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [int(line.split(",")[0]) for line in (run / "eval.csv").read_text().splitlines()[1:]]
    return lines, rows, scalars


def test_later_records_are_removed(run):
    truncate_records(run, 45, 45)
    assert steps(run) == ([10, 20, 30, 40], [20, 40], {"perf/x": [10, 20, 30, 40], "eval/return_mean": [20, 40]})


def test_an_evaluation_that_is_repeated_is_removed_everywhere(run):
    truncate_records(run, 45, 39)
    assert steps(run) == ([10, 20, 30, 40], [20], {"perf/x": [10, 20, 30, 40], "eval/return_mean": [20]})


def test_records_of_a_run_without_workers_are_removed_by_its_updates(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl", "opt_steps")
    scores = Csv(tmp_path / "eval.csv", ("env_steps", "opt_steps", "mean"))
    for updates in (10, 20, 30):
        lines.record({"perf/x": 1.0}, updates)
        scores.write({"env_steps": 0, "opt_steps": updates, "mean": 1.5})
    lines.close("done")
    scores.close()
    truncate_records(tmp_path, 25, 15, "opt_steps")
    kept = [json.loads(line)["opt_steps"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert kept == [10, 20]
    assert (tmp_path / "eval.csv").read_text().split() == ["env_steps,opt_steps,mean", "0,10,1.5"]


def test_earlier_records_stay(run):
    files = {path: path.read_bytes() for path in run.iterdir()}
    truncate_records(run, 100, 100)
    assert {path: path.read_bytes() for path in run.iterdir()} == files


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_incomplete_records_are_removed(run, cut):
    for path in run.iterdir():
        path.write_bytes(path.read_bytes()[:-cut])
    truncate_records(run, 100, 100)
    lines, rows, _ = steps(run)
    assert lines == list(range(10, 91, 10)) or cut == 20
    assert lines == sorted(lines)
    assert rows == sorted(rows)
    for path in run.glob("events*"):
        before = path.read_bytes()
        truncate_records(run, 100, 100)
        assert path.read_bytes() == before
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 100}\n')
    assert steps(run)[0][-1] == 100


def test_later_videos_are_removed(tmp_path):
    names = ["eval_000000010.gif", "eval_000000020.gif", "eval_1000000000.gif", "best.gif"]
    (tmp_path / "videos").mkdir()
    for name in names:
        (tmp_path / "videos" / name).touch()
    truncate_records(tmp_path, 10, 10)
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["best.gif", "eval_000000010.gif"]


def test_an_empty_file_stays_empty(tmp_path):
    (tmp_path / "eval.csv").touch()
    truncate_records(tmp_path, 0, 0)
    assert (tmp_path / "eval.csv").read_bytes() == b""
