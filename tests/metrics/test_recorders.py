import csv
import errno
import json
import logging
import math
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from fake_services import install_mlflow, install_wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

from drl_cli.metrics import recorders as module
from drl_cli.metrics.aggregation import Means, spread
from drl_cli.metrics.recorders import BackgroundRecorder, Csv, JsonLines, Mlflow, RunInfo, Wandb
from drl_cli.metrics.tensorboard import LAYOUT, Film, TensorBoard
from drl_cli.run_folder.truncation import Cut
from drl_cli.runtime.roles.records import describe
from drl_cli.settings.compose import compose
from drl_cli.utils.files import lock

FIXED = ("env_steps", "mean")


def test_means_are_weighted_and_reset_by_take():
    means = Means()
    means.add({"loss": 1.0, "only_once": 5.0})
    means.add({"loss": 4.0}, weight=3)
    assert (means.take(), means.take()) == ({"loss": 3.25, "only_once": 5.0}, {})
    means.add({"loss": 2.0})
    assert means.take() == {"loss": 2.0}


def test_spread():
    assert spread("r", [1.0, 2.0, 6.0]) == {"r_mean": 3.0, "r_min": 1.0, "r_max": 6.0, "r_median": 2.0}
    assert spread("r", iter([4])) == {"r_mean": 4.0, "r_min": 4.0, "r_max": 4.0, "r_median": 4.0}
    assert spread("r", []) == {}


def test_metrics_jsonl_is_valid_json_and_appended(tmp_path):
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


@pytest.fixture
def scores(tmp_path):
    return Csv(tmp_path / "eval.csv", FIXED)


def read(scores):
    with scores.path.open(newline="") as file:
        return list(csv.reader(file))


def row(step):
    return {"env_steps": step, "mean": step / 2}


def test_new_names_become_columns_at_the_end(scores):
    scores.write(row(1))
    scores.write(row(2), {"success": 1.0})
    scores.write(row(3), {"lap, time": 2.5, "success": 0.0})
    scores.write(row(4), {"lap, time": 3.5})
    assert read(scores) == [
        *[["env_steps", "mean", "success", "lap, time"], ["1", "0.5", "", ""], ["2", "1.0", "1.0", ""]],
        *[["3", "1.5", "0.0", "2.5"], ["4", "2.0", "", "3.5"]],
    ]


def test_fixed_columns_win_and_are_required(scores):
    scores.write(row(8), {"mean": 100.0})
    with pytest.raises(KeyError):
        scores.write({"mean": 1.0})
    assert read(scores) == [list(FIXED), ["8", "4.0"]]


def test_a_continued_file_keeps_its_columns_also_those_of_truncated_rows(scores):
    scores.write(row(10), {"a": 1.0})
    scores.write(row(20), {"b": 2.0})
    scores.close()
    Cut(10, 10).apply(scores.path.parent)
    again = Csv(scores.path, FIXED)
    again.write(row(20), {"c": 4.0, "b": 3.0})
    assert read(again) == [
        ["env_steps", "mean", "a", "b", "c"], ["10", "5.0", "1.0", "", ""], ["20", "10.0", "", "3.0", "4.0"]
    ]  # fmt: skip


def test_a_full_disk_leaves_the_file_unchanged(scores, monkeypatch):
    scores.write(row(1))

    def full(*paths):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            scores.write(row(2), {"a": 1.0})
    scores.write(row(3))
    assert read(scores) == [list(FIXED), ["1", "0.5"], ["3", "1.5"]]
    scores.write(row(4), {"a": 2.0})
    assert read(scores)[-1] == ["4", "2.0", "2.0"]
    assert [path.name for path in scores.path.parent.iterdir()] == ["eval.csv"]


def test_recorders_can_be_made_on_a_full_disk(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        scores = Csv(tmp_path / "eval.csv", FIXED)
    board = TensorBoard(RunInfo("id", "name", tmp_path, "project", {}))
    (events,) = tmp_path.iterdir()
    assert events.stat().st_size == 0  # nothing is written before the first record
    board.record({"a": 1.0}, 10)
    assert events.stat().st_size > 0
    scores.write(row(1))
    assert read(scores) == [list(FIXED), ["1", "0.5"]]


@pytest.mark.parametrize(("status", "code"), [("done", "STATUS_SUCCESS"), ("failed", "STATUS_FAILURE")])
def test_tensorboard_has_scalars_and_hyperparameters(tmp_path, status, code):
    hparams = {"lr": 0.5, "layers": 2, "flag": True, "name": "x", "none": None}
    more = {"seed": 3, "gamma": 0.9, "replay.sampler": "prioritized"}
    run = RunInfo("id", "name", tmp_path, "project", {**hparams, **more}, typed=[*hparams, "unknown", "replay"])
    board = TensorBoard(run)
    board.record({"a/b": 1.5, "c": 2.0}, 1000)
    board.record({"a/b": math.nan}, 3_000_000_000)
    board.close(status)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["a/b", "c"]
    first, second = events.Scalars("a/b")
    assert ((first.step, first.value), second.step) == ((1000, 1.5), 3_000_000_000)
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
    assert hparams["seed"].number_value == 3  # shown for every run
    assert "gamma" not in hparams  # nobody typed it
    assert hparams["replay.sampler"].string_value == "prioritized"  # typed as replay=prioritized
    assert end.session_end_info.status == api_pb2.Status.Value(code)


def written(folder, write):
    board = TensorBoard(RunInfo("id", "name", folder, "project", {}))
    write(board)
    board.close("done")
    return EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()


def test_tensorboard_has_a_layout_of_charts(tmp_path):
    events = written(tmp_path, lambda board: None)
    assert "custom_scalars__config__" in events.PluginTagToContent(custom_scalars.PLUGIN_NAME)
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == list(LAYOUT)
    tags = (
        "eval/return_mean",
        "eval/success",
        "eval/normalized_score",
        "eval/wall_s",
        "train/actor_loss",
        "perf/env_steps_per_s",
    )
    shown = {
        chart.title: [tag for tag in tags if any(re.match(pattern, tag) for pattern in chart.multiline.tag)]
        for category in layout.category
        for chart in category.chart
    }
    assert shown["return: evaluation and training"] == ["eval/return_mean"]
    assert shown["normalised score"] == ["eval/normalized_score"]
    assert (shown["what the environment says"], shown["losses"]) == (["eval/success"], ["train/actor_loss"])
    assert shown["per second: environment steps, updates"] == ["perf/env_steps_per_s"]


def test_tensorboard_shows_a_video_as_an_animated_image(tmp_path):
    film = Film(30.0)
    for brightness in (0, 100, 200):
        film.step(lambda brightness=brightness: np.full((20, 30, 3), brightness, np.uint8))
    path = tmp_path / "x.gif"
    path.write_bytes(film.gif())
    events = written(tmp_path, lambda board: board.video("eval/video", path, 70))
    (event,) = events.Images("eval/video")
    assert (event.step, event.width, event.height, event.encoded_image_string) == (70, 30, 20, path.read_bytes())


def test_recorders_get_the_name_of_the_preset(tmp_path):
    config = compose(["env=CartPole-v1", "algo=munchausen_dqn", "seed=3"])
    assert describe(config, tmp_path).name == "CartPole-v1 munchausen_dqn-async s3"
    assert not describe(config, tmp_path).typed


def test_recorders_get_the_keys_that_the_user_typed(tmp_path):
    command = ["env=CartPole-v1", "+env.kwargs.a=1", "algo.lr=1e-3", "-m"]
    (tmp_path / "run.json").write_text(json.dumps({"command": command}))
    run = describe(compose(command[:1]), tmp_path)
    assert {key for key in run.typed if key in run.hparams} == {"algo.lr"}
    assert {"env.kwargs.a", "algo.gamma"} & set(run.typed) == {"env.kwargs.a"}


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
    Cut(45, 45).apply(run)
    assert steps(run) == ([10, 20, 30, 40], [20, 40], {"perf/x": [10, 20, 30, 40], "eval/return_mean": [20, 40]})


def test_an_evaluation_that_is_repeated_is_removed_everywhere(run):
    Cut(45, 39).apply(run)
    assert steps(run) == ([10, 20, 30, 40], [20], {"perf/x": [10, 20, 30, 40], "eval/return_mean": [20]})


def test_records_of_a_run_without_workers_are_removed_by_its_updates(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl", "opt_steps")
    scores = Csv(tmp_path / "eval.csv", ("env_steps", "opt_steps", "mean"))
    for updates in (10, 20, 30):
        lines.record({"perf/x": 1.0}, updates)
        scores.write({"env_steps": 0, "opt_steps": updates, "mean": 1.5})
    lines.close("done")
    scores.close()
    Cut(25, 15, "opt_steps").apply(tmp_path)
    kept = [json.loads(line)["opt_steps"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert kept == [10, 20]
    assert (tmp_path / "eval.csv").read_text().split() == ["env_steps,opt_steps,mean", "0,10,1.5"]


def test_earlier_records_stay(run):
    files = {path: path.read_bytes() for path in run.iterdir()}
    Cut(100, 100).apply(run)
    assert {path: path.read_bytes() for path in run.iterdir()} == files


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_incomplete_records_are_removed(run, cut):
    for path in run.iterdir():
        path.write_bytes(path.read_bytes()[:-cut])
    Cut(100, 100).apply(run)
    lines, rows, _ = steps(run)
    assert lines == list(range(10, 91, 10)) or cut == 20
    assert lines == sorted(lines)
    assert rows == sorted(rows)
    for path in run.glob("events*"):
        before = path.read_bytes()
        Cut(100, 100).apply(run)
        assert path.read_bytes() == before
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 100}\n')
    assert steps(run)[0][-1] == 100


def test_later_videos_are_removed(tmp_path):
    names = ["eval_000000010.gif", "eval_000000020.gif", "eval_1000000000.gif", "best.gif"]
    (tmp_path / "videos").mkdir()
    for name in names:
        (tmp_path / "videos" / name).touch()
    Cut(10, 10).apply(tmp_path)
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["best.gif", "eval_000000010.gif"]


def test_an_empty_file_stays_empty(tmp_path):
    (tmp_path / "eval.csv").touch()
    Cut(0, 0).apply(tmp_path)
    assert (tmp_path / "eval.csv").read_bytes() == b""


LONG = 60.0


class Noting:
    def __init__(self):
        self.calls = []

    def record(self, scalars, env_steps):
        self.calls.append((dict(scalars), env_steps))

    def close(self, status):
        self.calls.append(status)


class Filming(Noting):
    def video(self, tag, path, env_steps):
        self.calls.append((tag, path, env_steps))


def close(recorder):
    recorder.close("done")
    recorder.wait(LONG)
    return recorder.take_problem()


def test_calls_arrive_in_order_and_before_the_end():
    noting, scalars = Noting(), {"a": 1.0}
    recorder = BackgroundRecorder("mine", lambda: noting)
    for step in range(100):
        recorder.record(scalars, step)
        scalars["a"] += 1.0  # must not change the queued values
    assert close(recorder) is None
    assert noting.calls == [*(({"a": 1.0 + step}, step) for step in range(100)), "done"]


@pytest.mark.parametrize("kind", [Noting, Filming])
def test_only_recorders_with_a_video_method_get_videos(kind, tmp_path):
    noting = kind()
    recorder = BackgroundRecorder("mine", lambda: noting)
    recorder.video("eval/video", tmp_path, 5)
    assert close(recorder) is None
    assert noting.calls == [*([("eval/video", tmp_path, 5)] if kind is Filming else []), "done"]


def test_a_failing_recorder_is_reported_once_and_called_again(caplog):
    caplog.set_level(logging.INFO)

    class Failing(Noting):
        def record(self, scalars, env_steps):
            if env_steps < 3:
                raise RuntimeError(f"the server\nis gone at {env_steps}")
            super().record(scalars, env_steps)

    failing = Failing()
    recorder = BackgroundRecorder("mine", lambda: failing)
    for step in range(5):
        recorder.record({}, step)
    problem = close(recorder)
    assert problem == "mine record raised RuntimeError: the server is gone at 0 (shown once; training continues)"
    assert recorder.take_problem() is None
    assert (failing.calls, len(caplog.records)) == ([({}, 3), ({}, 4), "done"], 1)
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("error", [OSError("no server"), SystemExit("no key")])
def test_a_recorder_that_can_not_be_made_is_reported_once(error):
    def make():
        raise error

    recorder = BackgroundRecorder("mine", make)
    for step in range(2 * module.MAX_WAITING):
        recorder.record({}, step)
    text = f"mine can't be made: {type(error).__name__}: {error}"
    assert close(recorder) == f"{text} (shown once; training continues)"
    assert recorder.take_problem() is None


@pytest.mark.parametrize("method", ["record", "close"])
def test_nobody_waits_for_a_hanging_recorder(method):
    released = threading.Event()
    Hanging = type("Hanging", (Noting,), {method: lambda *_: released.wait(LONG)})
    recorder = BackgroundRecorder("mine", Hanging)
    problem = "is still busy at the end; unwritten values are lost"
    if method == "record":
        problem = "is too slow; some values are left out"
        for step in range(module.MAX_WAITING + 2):
            recorder.record({}, step)
    recorder.close("done")
    recorder.wait(0.0)
    assert recorder.take_problem() == f"mine {problem} (shown once; training continues)"
    assert recorder.take_problem() is None
    released.set()


RUN = RunInfo(
    "20260101-000000-000000-s3", "Pendulum-v1 sac-single s3", Path("/runs/x"), "mine", {"lr": 1.0, "name": "x"}
)


@pytest.fixture
def wandb(monkeypatch):
    return install_wandb(monkeypatch)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_run_is_described(wandb, mode):
    Wandb(RUN, mode)
    (run,) = wandb.runs
    assert (run.mode, run.dir, run.project, run.id, run.name) == (mode, "/runs/x", "mine", RUN.id, RUN.name)
    assert (run.config, run.resume) == ({"lr": 1.0, "name": "x"}, "allow")


def test_scalars_are_over_env_steps_which_may_go_back(wandb):
    recorder = Wandb(RUN, "offline")
    recorder.record({"a": 1.0}, 200)
    recorder.record({"eval/b": 2.0}, 100)
    recorder.video("eval/video", Path("x.gif"), 100)
    (run,) = wandb.runs
    assert run.metrics == {"env_steps": None, "*": "env_steps"}
    assert run.logged == [
        {"a": 1.0, "env_steps": 200},
        {"eval/b": 2.0, "env_steps": 100},
        {"eval/video": "video x.gif gif", "env_steps": 100},
    ]


def test_a_resumed_run_has_the_same_id_and_the_end_gives_the_exit_code(wandb):
    for status in ("interrupted", "failed", "done"):
        Wandb(RUN, "offline").close(status)
    assert (len({run.id for run in wandb.runs}), [run.exit_code for run in wandb.runs]) == (1, [1, 1, 0])


SERVER = "http://somewhere:5000"


@pytest.fixture
def mlflow(monkeypatch):
    return install_mlflow(monkeypatch)


@pytest.fixture
def make(tmp_path):
    """Create the recorder of a run in output_dir/env/algo-mode/."""

    def make_it(uri="offline", id="20260101-000000-000000-s3", **hparams):
        folder = tmp_path / "env" / "algo-mode" / id
        folder.mkdir(parents=True, exist_ok=True)
        return Mlflow(RunInfo(id, f"name of {id}", folder, "mine", hparams), uri)

    return make_it


def only(mlflow):
    (store,) = mlflow.stores.values()
    (run,) = store[1].values()
    return run


def test_runs_are_in_one_database_beside_them(mlflow, make, tmp_path):
    make(id="a")
    make(id="b")
    ((uri, (experiments, runs)),) = mlflow.stores.items()
    assert uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert {name: experiment.artifacts for name, experiment in experiments.items()} == {
        "mine": (tmp_path / "mlartifacts").as_uri()
    }
    assert [run.info.run_name for run in runs.values()] == ["name of a", "name of b"]
    assert [run.tags["drl.run"] for run in runs.values()] == ["a", "b"]


def test_only_one_of_two_runs_creates_the_database(mlflow, make, tmp_path, monkeypatch):
    taken = []

    def create(*args):
        with pytest.raises(BlockingIOError):
            lock(tmp_path / ".mlflow.db.lock")
        taken.append(args)
        return "1"

    monkeypatch.setattr("fake_services.FakeClient.create_experiment", lambda self, *args: create(*args))
    make()
    assert len(taken) == 1
    lock(tmp_path / ".mlflow.db.lock").close()


def test_hyperparameters_are_sent_in_parts_and_shortened(mlflow, make):
    make(**{f"k{i}": i for i in range(250)}, long="x" * 10_000, none=None)
    params = only(mlflow).params
    assert (len(params), (params["k249"], params["none"], params["long"])) == (252, ("249", "None", "x" * 500))


def test_scalars_are_over_env_steps_and_finite_under_names_that_are_allowed(mlflow, make):
    recorder = make()
    recorder.record({"perf/a.b-c": 1, "rollout/lap time (s)": 2.5, "bad": math.nan, "worse": -math.inf}, 200)
    recorder.record({"eval/a": 1.0}, 100)
    assert only(mlflow).metrics == [("perf/a.b-c", 1.0, 200), ("rollout/lap time _s_", 2.5, 200), ("eval/a", 1.0, 100)]


@pytest.mark.parametrize(("status", "told"), [("done", "FINISHED"), ("interrupted", "KILLED"), ("diverged", "FAILED")])
def test_the_end_gives_the_status(mlflow, make, status, told):
    make().close(status)
    assert only(mlflow).info.status == told


def test_a_video_is_an_artifact(mlflow, make, tmp_path):
    make().video("eval/video", tmp_path / "x.gif", 100)
    assert only(mlflow).artifacts == [(str(tmp_path / "x.gif"), "videos")]


def test_a_resumed_run_continues_the_same_mlflow_run(mlflow, make):
    make(lr=1.0).close("interrupted")
    again = make(lr=2.0)
    assert only(mlflow).info.status == "RUNNING"
    again.record({"a": 1.0}, 5)
    assert (only(mlflow).params, only(mlflow).metrics) == ({"lr": "1.0"}, [("a", 1.0, 5)])


def test_a_resumed_run_is_new_on_another_server(mlflow, make):
    make()
    make(SERVER)
    assert [len(runs) for _, runs in mlflow.stores.values()] == [1, 1]
    assert mlflow.stores[SERVER][0]["mine"].artifacts is None  # the server has a place for them
