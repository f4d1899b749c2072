"""A recorder aside: called in order, waited for at the end alone, and said once when it fails."""

import logging
import threading

import pytest

from drl_cli.metrics import aside as module
from drl_cli.metrics.aside import Aside

LONG = 60.0


class Noting:
    def __init__(self):
        self.calls = []

    def record(self, scalars, env_steps):
        self.calls.append((dict(scalars), env_steps))

    def close(self, status):
        self.calls.append(status)


class Filming(Noting):
    def video(self, tag, path, env_steps):
        self.calls.append((tag, path, env_steps))


def ended(aside):
    aside.close("done")
    aside.wait(LONG)
    return aside.take_problem()


def test_calls_come_in_order_and_all_before_the_end():
    noting = Noting()
    aside = Aside("mine", lambda: noting)
    scalars = {"a": 1.0}
    for step in range(100):
        aside.record(scalars, step)
        scalars["a"] += 1.0  # what was given stays as it was
    assert ended(aside) is None
    assert noting.calls == [*(({"a": 1.0 + step}, step) for step in range(100)), "done"]


@pytest.mark.parametrize("kind", [Noting, Filming])
def test_videos_go_to_those_that_take_them(kind, tmp_path):
    recorder = kind()
    aside = Aside("mine", lambda: recorder)
    aside.video("eval/video", tmp_path, 5)
    assert ended(aside) is None
    assert recorder.calls == [*([("eval/video", tmp_path, 5)] if kind is Filming else []), "done"]


def test_one_that_fails_is_said_once_and_called_again(caplog):
    caplog.set_level(logging.INFO)

    class Failing(Noting):
        def record(self, scalars, env_steps):
            if env_steps < 3:
                raise RuntimeError(f"the server\nis gone at {env_steps}")
            super().record(scalars, env_steps)

    failing = Failing()
    aside = Aside("mine", lambda: failing)
    for step in range(5):
        aside.record({}, step)
    problem = ended(aside)
    assert problem == "mine record raised RuntimeError: the server is gone at 0 (said once; training goes on)"
    assert aside.take_problem() is None
    assert failing.calls == [({}, 3), ({}, 4), "done"]
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("error", [OSError("no server"), SystemExit("no key")])
def test_one_that_can_not_be_made_is_said_once(error):
    def make():
        raise error

    aside = Aside("mine", make)
    for step in range(2 * module.MOST_WAITING):
        aside.record({}, step)
    assert ended(aside) == f"mine can't be made: {type(error).__name__}: {error} (said once; training goes on)"
    assert aside.take_problem() is None


def test_nobody_waits_for_one_that_hangs(monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    released = threading.Event()

    class Hanging(Noting):
        def record(self, scalars, env_steps):
            released.wait(LONG)

    aside = Aside("mine", Hanging)
    for step in range(10):
        aside.record({}, step)
    assert aside.take_problem() == (
        "mine is too slow; some of what there is to record is left out (said once; training goes on)"
    )
    aside.close("done")
    aside.wait(0.0)
    assert aside.take_problem() is None  # it was said that it is slow
    released.set()


def test_one_that_hangs_at_the_end_is_said():
    released = threading.Event()

    class Hanging(Noting):
        def close(self, status):
            released.wait(LONG)

    aside = Aside("mine", Hanging)
    aside.close("done")
    aside.wait(0.0)
    assert "is still busy at the end" in aside.take_problem()
    released.set()
