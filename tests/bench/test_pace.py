import tempfile

import pytest
from graphs import make_config

from drl_cli.bench.pace import HEAD, measure, overridden, pace
from drl_cli.errors import RunError

SMALL = (
    "env=Pendulum-v1", "debug.in_process=true", "network.hidden=[16,16]", "worker.num=1", "worker.envs=2",
    "worker.block_rows=16", "trainer.batch_size=8", "replay.capacity=2000", "orchestrator.min_inserts=32",
)  # fmt: skip


def report(*values):
    names = ("perf/wall_s", "env_steps", "perf/opt_steps", "perf/worker_wait_s", "perf/trainer_wait_s")
    return dict(zip(names, values, strict=True))


def test_the_pace_lies_between_the_first_and_the_last_report():
    reports = [report(10, 1000, 50, 2, 1), report(11, 1200, 100, 2.5, 1), report(14, 2400, 250, 4, 3)]
    found = pace(reports, make_config("worker.num=2"), 3.5)
    assert (found.env_steps_per_s, found.opt_steps_per_s, found.ratio) == (350, 50, pytest.approx(1 / 7))
    assert (found.worker_wait, found.trainer_wait) == (0.25, 0.5)  # 2 s of two workers, 2 of 4 s
    assert (found.rounds, found.start_up_s) == ((200, 400), 3.5)
    assert str(found).split() == ["350", "200", "-", "400", "50", "0.143", "25%", "50%", "3.5"]
    assert len(str(found)) == len(HEAD)


def test_an_override_replaces_older_values_of_its_key():
    command = ["worker.num=3", "++worker.envs=4", "env=X", "worker.num_x=1", "mode=single"]
    changed = overridden(command, "worker.num=1", "worker.envs=8", "mode=async")
    assert changed == ["env=X", "worker.num_x=1", "worker.num=1", "worker.envs=8", "mode=async"]


def test_a_run_that_ends_too_early_is_an_error_with_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RunError, match="environment") as caught:
        measure([*SMALL, "env=Pendulum-v7"], make_config(*SMALL), 0.3)
    assert (caught.value.exit_code, list(tmp_path.iterdir())) == (2, [])
