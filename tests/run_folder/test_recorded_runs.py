"""Runs of earlier versions (tests/recorded) can be loaded, evaluated, listed and resumed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import drl_cli
from drl_cli.run_folder.find import read_config
from drl_cli.run_folder.saved_run import Run

RECORDED = Path(__file__).parents[1] / "recorded"
RUNS = sorted(path.parent for path in RECORDED.glob("*/*/run.json"))
OBS = np.array([[1, 0, 0], [0, 1, -2], [-1, 0, 4], [0.6, -0.8, 7]], np.float32)
ACTIONS = {
    "1.0": {
        "best": [-0.14386845, 0.06736565, -0.23504877, -0.42210555],
        "last": [-0.08996451, 0.14720416, -0.22734857, -0.36766911],
    }
}
"""The actions for OBS, by the version and the checkpoint of a run."""


@pytest.fixture(params=RUNS, ids=lambda run: run.parent.name)
def run(request, tmp_path, monkeypatch):
    """A copy of a recorded run, with the links `best` and `last`."""
    copy = tmp_path / "outputs" / "Pendulum-v1" / "td3-single" / request.param.name
    shutil.copytree(request.param, copy)
    (copy / "checkpoints" / "best").symlink_to("step_000000080-best")
    (copy / "checkpoints" / "last").symlink_to("step_000000160")
    monkeypatch.chdir(tmp_path)
    return request.param.parent.name, copy


def test_a_run_of_each_format_is_kept():
    assert [run.parent.name for run in RUNS] == [*ACTIONS]
    assert "1.0" in ACTIONS


def test_its_policies_act_as_they_did(run):
    version, folder = run
    for checkpoint, actions in ACTIONS[version].items():
        policy = drl_cli.load(str(folder), checkpoint)
        np.testing.assert_allclose(policy(OBS)[:, 0], actions, atol=1e-5)


def test_its_files_are_read(run):
    _, folder = run
    config = read_config(folder)
    assert (config.algo_name, config.network.hidden, config.seed) == ("td3", (8,), 1)
    found = Run(folder)
    assert (found.status, found.best) == ("done", pytest.approx(-1459.0, abs=0.1))
    assert drl_cli.curves("latest")["env_steps"] == [80, 160]


@pytest.mark.slow
def test_it_is_evaluated_and_resumed_from_its_whole_state(run, drl_here):
    version, folder = run
    done = drl_here("eval", "latest", "checkpoint=last", "episodes=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{folder.name}  step_000000160  (128 updates, greedy)")
    summary = drl_cli.train("resume=latest total_env_steps=176")
    assert (summary["folder"], summary["exit_code"]) == (str(folder), 0)
    counts = {name: summary[name] for name in ("env_steps", "opt_steps", "inserts", "episodes")}
    assert counts == {"env_steps": 176, "opt_steps": 144, "inserts": 176, "episodes": 8}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (lines[-1]["env_steps"], lines[-1]["replay/size"]) == (176, 176)
    after = drl_cli.load(str(folder), "last")(OBS)[:, 0]
    assert 0 < np.abs(after - ACTIONS[version]["last"]).max() < 0.1  # 16 updates change a trained policy a little
