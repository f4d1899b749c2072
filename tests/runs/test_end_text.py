import json

import pytest

from drl_cli.errors import DIVERGED, INTERRUPTED, LOST, RESOURCES, USER_CODE
from drl_cli.runs.end_text import end_text


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


@pytest.mark.parametrize("has_pillow", [True, False])
def test_a_video_is_recommended_if_pillow_is_installed(tmp_path, monkeypatch, has_pillow):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: has_pillow or None)
    text = end_text({"status": "done", "checkpoint_best": "checkpoints/step_1"}, tmp_path)
    assert ("drl-play" in text) == has_pillow


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
