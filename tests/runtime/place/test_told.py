import threading
import time

import pytest

from drl_cli.runtime.place import told


class Role:
    """A role whose steps grow to 3."""

    def __init__(self):
        self.steps = 0

    def told_steps(self):
        self.steps = min(self.steps + 1, 3)
        return [[0, 20, self.steps]]


def wait_for(condition):
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return condition()


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(told, "TELL_S", 0.001)


def test_the_newest_steps_are_read_from_the_file(tmp_path):
    path = told.told_file(f"{tmp_path}/worker-0.log")
    assert (path, told.read(path)) == (tmp_path / "worker-0.steps", [])
    role = Role()
    told.tell(role, path)
    assert wait_for(lambda: told.read(path) == [[0, 20, 3]])


def test_the_thread_ends_with_its_role(tmp_path):
    before, role = set(threading.enumerate()), Role()
    told.tell(role, path := tmp_path / "worker-0.steps")
    (thread,) = set(threading.enumerate()) - before
    assert wait_for(lambda: told.read(path) == [[0, 20, 3]])
    assert thread.is_alive()
    del role
    assert wait_for(lambda: not thread.is_alive())


def test_a_role_without_steps_and_a_missing_folder_are_no_errors(tmp_path):
    told.tell(object(), tmp_path / "trainer.steps")
    (tmp_path / "worker-0.steps").write_text("[[0, 2")
    assert told.read(tmp_path / "worker-0.steps") == told.read(tmp_path / "nowhere" / "worker-0.steps") == []
