import threading
import time

import pytest

from drl_cli.runtime.place import told
from drl_cli.runtime.place.handles import LocalHandle
from drl_cli.runtime.place.told import News
from drl_cli.utils.clock import compiler_since, waiting_for_compiler


class Role:
    """A role whose steps grow to 3."""

    def __init__(self):
        self.steps = 0

    def told_steps(self):
        self.steps = min(self.steps + 1, 3)
        return [[0, 20, self.steps]]


class Silent:
    """A role without steps."""


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
    assert (path, told.read(path)) == (tmp_path / "worker-0.told", News())
    role = Role()
    told.tell(role, path)
    assert wait_for(lambda: told.read(path) == News(([0, 20, 3],)))


def test_the_thread_ends_with_its_role(tmp_path):
    before, role = set(threading.enumerate()), Role()
    told.tell(role, path := tmp_path / "worker-0.told")
    (thread,) = set(threading.enumerate()) - before
    assert wait_for(lambda: told.read(path) == News(([0, 20, 3],)))
    assert thread.is_alive()
    del role
    assert wait_for(lambda: not thread.is_alive())


def test_a_role_without_steps_tells_only_that_it_waits_for_a_compiler(tmp_path):
    role, path = Silent(), tmp_path / "trainer.told"
    told.tell(role, path)
    with waiting_for_compiler():
        assert wait_for(path.exists)
        assert (told.read(path), compiler_since()) == (News((), compiler_since()), pytest.approx(time.time(), abs=60))
        assert LocalHandle(role).told() == News((), compiler_since())
    assert wait_for(lambda: told.read(path) == News() == LocalHandle(role).told())


def test_a_missing_role_or_folder_and_half_a_file_are_no_errors(tmp_path):
    before = set(threading.enumerate())
    told.tell(None, tmp_path / "trainer.told")
    assert set(threading.enumerate()) == before
    (tmp_path / "worker-0.told").write_text("[[0, 2")
    assert told.read(tmp_path / "worker-0.told") == told.read(tmp_path / "nowhere" / "worker-0.told") == News()
