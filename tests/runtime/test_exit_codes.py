"""The exit code of each kind of error."""

import io
import time

import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.envs.make import read_spec
from drl_cli.errors import CheckpointError, Diverged, EnvironmentFailed, RoleLost
from drl_cli.metrics.console import Console
from drl_cli.runtime import run as run_module


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("a bug of ours"), 1),
        (EnvironmentFailed("worker 0 env 0: step raised ValueError"), 4),
        (Diverged("training diverged at update 3"), 5),
        (RoleLost("worker 0 died"), 6),
        (OSError(28, "No space left on device"), 7),
        (MemoryError("no room for the replay table"), 7),
        (CheckpointError("model.safetensors is damaged"), 8),
    ],
)
def test_the_exit_code_tells_the_kind_of_end(tmp_path, monkeypatch, capsys, error, code):
    def build(*args, **options):
        raise error

    monkeypatch.setattr(run_module, "build", build)
    console = Console("quiet", io.StringIO(), time.time())
    config = make_config(*TINY, COUNTER, "mode=single", "debug.in_process=true")
    (tmp_path / "checkpoints").mkdir()
    summary = run_module.run(config, read_spec(config.env), tmp_path, {"id": "test"}, time.time(), console)
    assert summary["exit_code"] == code
    assert capsys.readouterr().err.startswith("error: ")
    assert type(error).__name__ in (tmp_path / "error.txt").read_text()
