import io
import time

import pytest
import torch
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.errors import CheckpointError, Diverged, EnvironmentFailed, RoleLost
from drl_cli.metrics.console import Console
from drl_cli.runtime import run as run_module
from drl_cli.runtime.roles.evaluator import Evaluator


@pytest.fixture
def run(tmp_path):
    """Make a run with these words and return its summary."""
    for folder in ("checkpoints", "workers"):
        (tmp_path / folder).mkdir()

    def run(*words):
        config = make_config(*TINY, COUNTER, "mode=single", "debug.in_process=true", *words)
        console = Console("quiet", io.StringIO(), time.time())
        return run_module.run(config, read_spec(config.env), tmp_path, {"id": "test"}, time.time(), console)

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


@pytest.mark.parametrize(("length", "code"), [(40, 2), (1000, 2), (5, 0)])
def test_a_run_without_an_update_because_no_episode_ended_is_not_done(run, capsys, length, code):
    """16 environments take 32 steps each, and rows of Cal-QL wait for the end of their episode."""
    summary = run("algo=cal_ql", "algo.samples=1", "worker.envs=16", f"+env.kwargs.base_length={length}")
    assert (summary["exit_code"], summary["opt_steps"] > 0) == (code, code == 0)
    line = "no update was made: rows reach replay when their episode ends, and 512 steps of 16 environments gave 0 rows"
    assert (line in capsys.readouterr().err) == (code == 2)
