"""The steps that a worker in another process tells."""

import time
from types import SimpleNamespace

from drl_cli.runtime.place import told


def test_the_newest_steps_are_read_from_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(told, "TELL_S", 0.001)
    path = told.told_file(f"{tmp_path}/worker-0.log")
    assert path == tmp_path / "worker-0.steps"
    assert told.read(path) == []
    steps = iter(range(1, 4))
    role = SimpleNamespace(told_steps=lambda: [[0, 20, next(steps, 3)]])
    told.tell(role, path)
    until = time.monotonic() + 10
    while told.read(path) != [[0, 20, 3]] and time.monotonic() < until:
        time.sleep(0.001)
    assert told.read(path) == [[0, 20, 3]]


def test_a_role_without_steps_and_a_missing_folder_are_no_errors(tmp_path):
    told.tell(object(), tmp_path / "trainer.steps")
    (tmp_path / "worker-0.steps").write_text("[[0, 2")
    assert told.read(tmp_path / "worker-0.steps") == told.read(tmp_path / "nowhere" / "worker-0.steps") == []
