import json
import math

import pytest
import yaml
from run_folders import make_run

from drl_cli.errors import DIVERGED, INTERRUPTED, LOST, RESOURCES, USER_CODE
from drl_cli.metrics.status import Status
from drl_cli.run_folder import RUN_LOCK
from drl_cli.run_folder.saved_run import Run, columns_of, read_keys
from drl_cli.runs.end_text import end_text
from drl_cli.types import flatten
from drl_cli.utils.files import lock


def test_a_done_run(tmp_path):
    folder = make_run(tmp_path, "r1", [(10, 1.0, -5.0)], summary={"env_steps": 40, "wall_s": 7.5}, env__kwargs={"g": 2})
    run = Run(folder)
    assert (run.id, run.status, run.env_steps, run.wall_s) == ("r1", "done", 40, 7.5)
    assert (run.config["env.kwargs.g"], run.record["command"], run.curve.best) == (2, ["drl-train"], -5.0)
    assert flatten({"a": {"b": 1, "c": {"d": [2], "e": {}}}, "f": None}) == {"a.b": 1, "a.c.d": [2], "f": None}


def test_a_run_is_killed_if_its_lock_is_free_before_its_end(tmp_path):
    run = Run(make_run(tmp_path, "r1", status="running"))
    assert run.status == "killed"
    with lock(run.folder / RUN_LOCK):
        assert run.status == "running"
    assert run.status == "killed"
    (run.folder / "run.json").write_text('{"status": "interrupted"}')
    assert run.status == "interrupted"


def test_a_killed_run_has_the_newest_steps_that_it_told(tmp_path):
    """drl-watch reads status.json, which is often newer than the last report."""
    folder = make_run(tmp_path, "r1", [(10, 1.0, -5.0)], status="running")
    assert (Run(folder).position, Run(folder).env_steps, Run(folder).wall_s) == (0, 0, 1.0)
    (folder / "metrics.jsonl").write_text('{"env_steps": 40, "perf/wall_s": 4.0}\n')
    for steps, seconds, expected in ((30, 3.0, (40, 40, 4.0)), (50, 5.5, (50, 50, 5.5))):
        Status(env_steps=steps, opt_steps=7, wall_s=seconds).write(folder)
        assert (Run(folder).position, Run(folder).env_steps, Run(folder).wall_s) == expected
    offline = make_run(tmp_path, "r2", status="running", mode="offline")
    Status(opt_steps=70).write(offline)
    assert (Run(offline).position, Run(offline).env_steps) == (70, 0)


def test_the_progress_of_a_running_run_is_its_last_complete_report(tmp_path):
    folder = make_run(tmp_path, "r1", status="running")
    lines = [json.dumps({"env_steps": i, "perf/wall_s": i / 10, "x": "y" * 50}) for i in range(3000)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"env_steps": 99')
    assert (Run(folder).env_steps, Run(folder).wall_s, Run(folder).last_report["env_steps"]) == (2999, 299.9, 2999)
    (folder / "metrics.jsonl").write_text('{"env_steps": 7}\n')
    assert Run(folder).last_report == {"env_steps": 7}


@pytest.mark.parametrize("content", [None, "", "[]", "{", "3\n", "\n", '{"id": "a", "sta'])
def test_missing_or_damaged_files_are_empty(tmp_path, content):
    names = ("run.json", "config.yaml", "summary.json", "metrics.jsonl", "eval.csv")
    for name in names if content is not None else ():
        (tmp_path / name).write_text(content)
    run = Run(tmp_path)
    assert (run.status, run.record, run.summary, run.config, run.last_report) == ("unknown", {}, {}, {}, {})
    assert (run.env_steps, run.wall_s, len(run.curve)) == (0, 0.0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "# top\nseed: 3\nalgo:\n  lr: 1e-3\n  # inner\n  name: x\ntags:\n- a\n- b: 1\nempty: {}\nnotes: |\n  seed: 4\n",
        *["a: &x [1, 2]\nb: *x\n", "a: &x [1, 2]\nb: *x\na: 3\n", "{a: 1, b: {c: 2}}"],
        *["long: 'one\n\n  two: 3\n  four'\nb: 2\n", "- a\n- b", "text", ""],
    ],
)
def test_a_config_in_sections_has_the_values_of_the_whole(text):
    node = yaml.safe_load(text)
    assert read_keys(text) == (flatten(node) if isinstance(node, dict) else {})


@pytest.mark.parametrize("text", ["a: 1\nb: [1, 2\n", "a: *x\n", "a: 1\nb: '"])
def test_a_damaged_config_has_no_values(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    assert Run(tmp_path).config == {}


@pytest.mark.parametrize(
    ("exit_code", "resumes"), [(INTERRUPTED, True), (LOST, True), (DIVERGED, True), (USER_CODE, False)]
)
def test_resume_is_advised_unless_the_users_code_would_fail_again(tmp_path, exit_code, resumes):
    summary = {"status": "failed", "exit_code": exit_code, "checkpoint_last": "checkpoints/step_1"}
    assert (f"drl-train resume={tmp_path}" in end_text(summary, tmp_path)) == resumes


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ["drl-eval", "drl-play", "drl-export"]),
        ({"renders": True, "formats": ["numpy", "torch", "onnx"]}, ["drl-eval", "drl-play", "drl-export"]),
        ({"renders": False}, ["drl-eval", "drl-export"]),
        ({"formats": []}, ["drl-eval", "drl-play"]),
        ({"formats": ["torch", "onnx"]}, ["drl-eval", "drl-play", "drl-export format=torch"]),
    ],
)
def test_only_commands_that_work_for_the_run_are_recommended(tmp_path, monkeypatch, facts, words):
    (tmp_path / "run.json").write_text(json.dumps(facts))
    summary = {"status": "done", "checkpoint_best": "checkpoints/step_1"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)  # Pillow is installed
    lines = [line[6:].replace(f" run={tmp_path}", "") for line in end_text(summary, tmp_path).splitlines()[1:]]
    assert [line.removesuffix(" episodes=100") for line in lines] == words


def test_tensorboard_is_recommended_if_the_run_wrote_for_it(tmp_path):
    assert "next" not in end_text({"status": "done"}, tmp_path)
    (tmp_path / "events.out.tfevents.1").touch()
    assert end_text({"status": "done"}, tmp_path).endswith(f"next: tensorboard --logdir {tmp_path.parent}")


@pytest.mark.parametrize(
    ("saved", "line"),
    [
        ((), "nothing was saved of 120,320 env steps"),
        (("step_000010240", "step_000017408"), "last saved: step 17,408 of 120,320"),
        (("step_000017408", "step_000120320-v7"), None),
        (("step_000017408", "step_000120320-best"), None),
    ],
)
def test_the_last_saved_step_is_named_if_later_steps_are_lost(tmp_path, saved, line):
    for name in saved:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    lines = end_text({"status": "failed", "exit_code": RESOURCES, "env_steps": 120_320}, tmp_path).splitlines()
    assert [text for text in lines if "saved" in text] == ([line] if line else [])


def test_the_mean_speed_is_in_the_first_line(tmp_path):
    summary = {"status": "done", "env_steps": 5000, "opt_steps": 900, "wall_s": 12.3}
    assert end_text(summary, tmp_path).splitlines()[0].endswith("5,000 env steps, 900 updates, 12 s")
    rates = {"env_steps_per_s": 1234.5, "opt_steps_per_s": 98.7, "training_s": 4.05}
    line = end_text({**summary, **rates}, tmp_path).splitlines()[0]
    assert line.endswith("12 s (1,234 env/s, 99 updates/s in 4.0 s of training)")
    assert "env/s" not in end_text({**summary, "env_steps_per_s": 0.0, "opt_steps_per_s": 0.0}, tmp_path)


def test_damaged_lines_of_an_evaluation_file_are_left_out(tmp_path):
    whole = b"env_steps,mean,score\r\n10,1.5,\r\n"
    (tmp_path / "eval.csv").write_bytes(whole + b"20,x,3\r\n\xff\xfe\x00\r\n30,2.5\r\n40,3.5,7\r\n50,4.")
    found = columns_of([tmp_path])
    assert (found["env_steps"], found["mean"]) == ([10, 40], [1.5, 3.5])
    assert math.isnan(found["score"][0])
    assert found["score"][1] == 7
