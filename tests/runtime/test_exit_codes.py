import io
import signal
import time

import pytest
import torch
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.errors import CheckpointError, Diverged, EnvironmentFailed, RoleLost
from drl_cli.metrics.console import Console
from drl_cli.run_folder.checkpoint import open_checkpoint
from drl_cli.run_folder.checkpoint_writer import CheckpointWriter
from drl_cli.runtime import run as run_module
from drl_cli.runtime.place.handles import ActorDied
from drl_cli.runtime.place.signals import Signals
from drl_cli.runtime.roles.evaluator import Evaluator
from drl_cli.runtime.roles.manage import Manage
from drl_cli.runtime.roles.trainer import Trainer


@pytest.fixture
def run(tmp_path):
    """Make a run with these words and return its summary."""
    for folder in ("checkpoints", "workers"):
        (tmp_path / folder).mkdir()

    def run(*words):
        run.signals = Signals()
        config = make_config(*TINY, COUNTER, "mode=single", "debug.in_process=true", *words)
        console = Console("quiet", io.StringIO(), time.time())
        spec, signals = read_spec(config.env), run.signals
        return run_module.run(config, spec, tmp_path, {"id": "test"}, time.time(), console, signals)

    return run


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (KeyError("a bug of ours"), 1, "failed"),
        (EnvironmentFailed("worker 0 env 0: step raised ValueError"), 4, "failed"),
        (Diverged("training diverged at update 3"), 5, "diverged"),
        (RoleLost("worker 0 died"), 6, "failed"),
        (OSError(28, "No space left on device"), 7, "failed"),
        (MemoryError("no room for the replay table"), 7, "failed"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 7, "failed"),
        (CheckpointError("model.safetensors is damaged"), 8, "failed"),
    ],
)
def test_the_exit_code_tells_the_kind_of_end(run, tmp_path, monkeypatch, capsys, error, code, status):
    def build(*args, **options):
        raise error

    monkeypatch.setattr(run_module, "build", build)
    summary = run()
    assert (summary["exit_code"], summary["status"]) == (code, status)
    assert capsys.readouterr().err.startswith("error: ")
    assert type(error).__name__ in (tmp_path / "error.txt").read_text()


@pytest.mark.parametrize(("fails", "code"), [(lambda calls: True, 4), (lambda calls: calls < 2, 0)], ids=["all", "one"])
def test_a_run_whose_evaluations_all_failed_is_not_done(run, monkeypatch, capsys, fails, code):
    greedy, calls = Evaluator.evaluate, []

    def evaluate(self, *args):
        calls.append(1)
        if fails(len(calls)):
            raise ValueError("no idea")
        return greedy(self, *args)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    summary = run("manage.eval_period=128")
    assert (summary["exit_code"], summary["env_steps"]) == (code, 512)
    assert (summary["checkpoint_last"] is not None) is True
    told = capsys.readouterr().err
    assert ("error: all evaluations failed: ValueError: no idea" in told) == (code == 4)
    assert (summary["best_return"] is None) == (code == 4)


def test_a_run_that_lost_manage_is_complete_and_saved_but_ends_with_exit_code_6(run, tmp_path, monkeypatch, capsys):
    def report(self, *args):
        raise ActorDied("signal 9")

    monkeypatch.setattr(Manage, "report", report)
    summary = run("manage.max_restarts=1", "logger.report_s=1e-9")
    assert (summary["exit_code"], summary["status"], summary["env_steps"]) == (6, "failed", 512)
    assert open_checkpoint(tmp_path / summary["checkpoint_last"]).env_steps == 512
    lost = "manage died (signal 9); 1 restarts are used up (manage.max_restarts)"
    missing = "its last evaluations and records are missing; its weights and checkpoints are saved"
    assert f"error: {lost}; the run is complete, but {missing}\n" in capsys.readouterr().err
    assert not (tmp_path / ".reserve").exists()


@pytest.mark.parametrize("when", ["building", "training", "saving"])
def test_a_signal_ends_a_run_whenever_it_comes(run, tmp_path, monkeypatch, when):
    """Two signals, as schedulers send them. Nothing is saved only if the run has no steps."""
    names = {"building": (run_module, "build"), "training": (Trainer, "train"), "saving": (CheckpointWriter, "commit")}
    place, name = names[when]
    method, calls = getattr(place, name), []

    def interrupted(*args, **options):
        calls.append(name)
        if len(calls) == 3 or when == "building":
            for _ in range(2):
                run.signals.on_end(signal.SIGTERM, None)
        return method(*args, **options)

    monkeypatch.setattr(place, name, interrupted)
    summary = run("checkpoint.period=64")
    assert (summary["exit_code"], summary["status"]) == (75, "interrupted")
    last = tmp_path / "checkpoints" / "last"
    assert last.exists() == (when != "building") == (summary["env_steps"] > 0)
    if last.exists():
        assert open_checkpoint(last).env_steps == summary["env_steps"] < 512


@pytest.mark.parametrize(("length", "code"), [(40, 2), (1000, 2), (5, 0)])
def test_a_run_without_an_update_because_no_episode_ended_is_not_done(run, capsys, length, code):
    """16 environments take 32 steps each, and rows of Cal-QL wait for the end of their episode."""
    summary = run("algo=cal_ql", "algo.samples=1", "worker.envs=16", f"+env.kwargs.base_length={length}")
    assert (summary["exit_code"], summary["opt_steps"] > 0) == (code, code == 0)
    line = "no update was made: rows reach replay when their episode ends, and 512 steps of 16 environments gave 0 rows"
    assert (line in capsys.readouterr().err) == (code == 2)
