"""ReadAhead: the next part is read before it is asked for, one at a time."""

import threading

import pytest

from drl_cli.data.dataset import ReadAhead


class Source:
    """Records its calls. A call waits until `go` is set, if it runs in another thread."""

    def __init__(self):
        self.parts, self.running, self.most, self.go = [], 0, 0, threading.Event()
        self.main = threading.get_ident()

    def read(self, start, stop):
        self.running += 1
        self.most = max(self.most, self.running)
        if threading.get_ident() != self.main:
            assert self.go.wait(10)
        self.parts.append((start, stop))
        self.running -= 1
        if start < 0:
            raise OSError("gone")
        return range(start, stop)


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def ahead(source):
    made = ReadAhead(source.read)
    yield made
    source.go.set()
    made.close()


def test_begin_returns_at_once_and_take_returns_what_the_thread_has_read(source, ahead):
    ahead.begin(2, 5)
    assert source.parts == []  # the thread waits, and `begin` does not
    source.go.set()
    assert ahead.take(2, 5) == range(2, 5)
    assert source.parts == [(2, 5)]


def test_another_part_than_the_begun_one_is_read_after_the_begun_one_has_ended(source, ahead):
    ahead.begin(0, 3)
    threading.Timer(0.1, source.go.set).start()
    assert ahead.take(3, 6) == range(3, 6)
    assert (source.parts, source.most) == ([(0, 3), (3, 6)], 1)
    assert ahead.take(0, 3) == range(3)  # the result that was dropped is not kept
    assert source.parts[2:] == [(0, 3)]


def test_an_error_of_the_thread_is_raised_by_take(source, ahead):
    source.go.set()
    ahead.begin(-1, 0)
    with pytest.raises(OSError, match="gone"):
        ahead.take(-1, 0)


def test_close_ends_the_thread(source, ahead):
    before = threading.active_count()
    ahead.begin(0, 1)
    assert threading.active_count() == before + 1
    source.go.set()
    ahead.close()
    assert threading.active_count() == before
