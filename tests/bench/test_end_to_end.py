"""The short real run: its command, what is read of its reports, its end."""

import tempfile

import pytest
from graphs import make_config

from drl_cli.bench.end_to_end import measure, overridden, pace
from drl_cli.errors import RunError

SMALL = (
    "env=Pendulum-v1", "debug.in_process=true", "network.hidden=[16,16]", "worker.num=1", "worker.envs=2",
    "worker.block_rows=16", "trainer.batch_size=8", "replay.capacity=2000", "orchestrator.min_inserts=32",
)  # fmt: skip


def line(wall_s, env_steps, opt_steps, worker_s, trainer_s):
    return {
        "perf/wall_s": wall_s,
        "env_steps": env_steps,
        "perf/opt_steps": opt_steps,
        "perf/worker_wait_s": worker_s,
        "perf/trainer_wait_s": trainer_s,
    }


def test_the_pace_is_that_between_the_first_and_the_last_report():
    lines = [line(10, 1000, 50, 2, 1), line(11, 1200, 100, 2.5, 1), line(14, 2400, 250, 4, 3)]
    found = pace(lines, make_config("worker.num=2"), 3.5)
    assert (found.env_steps_per_s, found.opt_steps_per_s, found.ratio) == (350, 50, pytest.approx(1 / 7))
    assert (found.worker_wait, found.trainer_wait) == (0.25, 0.5)  # 2 s of two workers, 2 of 4 s
    assert (found.rounds, found.start_up_s) == ((200, 400), 3.5)


def test_what_we_say_of_a_key_takes_the_place_of_what_was_said():
    command = ["worker.num=3", "++worker.envs=4", "env=X", "worker.num_x=1", "mode=single"]
    changed = overridden(command, "worker.num=1", "worker.envs=8", "mode=async")
    assert changed == ["env=X", "worker.num_x=1", "worker.num=1", "worker.envs=8", "mode=async"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["single", "async"])
def test_a_run_is_measured_and_leaves_nothing(folder, mode):
    command = [*SMALL, f"mode={mode}", "total_env_steps=40", "stop.return=-9999", "manage.eval_period=16"]
    found = measure(command, make_config(*command), 0.3)
    assert found.env_steps_per_s > 0
    assert found.ratio == pytest.approx(0.5, rel=0.5)  # as tuned
    assert 0 <= found.worker_wait <= 1
    assert 0 <= found.trainer_wait <= 1
    assert found.start_up_s > 0
    assert len(found.rounds) >= 2
    assert list(folder.iterdir()) == []


def test_a_run_that_ends_before_says_why_with_its_exit_code(folder):
    config = make_config(*SMALL)
    with pytest.raises(RunError, match="environment") as caught:
        measure([*SMALL, "env=Pendulum-v7"], config, 0.3)
    assert caught.value.exit_code == 2
    assert list(folder.iterdir()) == []
