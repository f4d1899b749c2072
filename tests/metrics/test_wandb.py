from pathlib import Path

import pytest
from fake_services import install_wandb

from drl_cli.metrics.recorders import RunInfo
from drl_cli.metrics.wandb import Wandb

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
