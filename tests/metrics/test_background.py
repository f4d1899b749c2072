import logging
import threading

import pytest

from drl_cli.metrics import background as module
from drl_cli.metrics.background import BackgroundRecorder

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


def close(recorder):
    recorder.close("done")
    recorder.wait(LONG)
    return recorder.take_problem()


def test_calls_arrive_in_order_and_before_the_end():
    noting, scalars = Noting(), {"a": 1.0}
    recorder = BackgroundRecorder("mine", lambda: noting)
    for step in range(100):
        recorder.record(scalars, step)
        scalars["a"] += 1.0  # must not change the queued values
    assert close(recorder) is None
    assert noting.calls == [*(({"a": 1.0 + step}, step) for step in range(100)), "done"]


@pytest.mark.parametrize("kind", [Noting, Filming])
def test_only_recorders_with_a_video_method_get_videos(kind, tmp_path):
    noting = kind()
    recorder = BackgroundRecorder("mine", lambda: noting)
    recorder.video("eval/video", tmp_path, 5)
    assert close(recorder) is None
    assert noting.calls == [*([("eval/video", tmp_path, 5)] if kind is Filming else []), "done"]


def test_a_failing_recorder_is_reported_once_and_called_again(caplog):
    caplog.set_level(logging.INFO)

    class Failing(Noting):
        def record(self, scalars, env_steps):
            if env_steps < 3:
                raise RuntimeError(f"the server\nis gone at {env_steps}")
            super().record(scalars, env_steps)

    failing = Failing()
    recorder = BackgroundRecorder("mine", lambda: failing)
    for step in range(5):
        recorder.record({}, step)
    problem = close(recorder)
    assert problem == "mine record raised RuntimeError: the server is gone at 0 (shown once; training continues)"
    assert recorder.take_problem() is None
    assert (failing.calls, len(caplog.records)) == ([({}, 3), ({}, 4), "done"], 1)
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("error", [OSError("no server"), SystemExit("no key")])
def test_a_recorder_that_can_not_be_made_is_reported_once(error):
    def make():
        raise error

    recorder = BackgroundRecorder("mine", make)
    for step in range(2 * module.MAX_WAITING):
        recorder.record({}, step)
    text = f"mine can't be made: {type(error).__name__}: {error}"
    assert close(recorder) == f"{text} (shown once; training continues)"
    assert recorder.take_problem() is None


@pytest.mark.parametrize("method", ["record", "close"])
def test_nobody_waits_for_a_hanging_recorder(monkeypatch, method):
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    released = threading.Event()
    Hanging = type("Hanging", (Noting,), {method: lambda *_: released.wait(LONG)})
    recorder = BackgroundRecorder("mine", Hanging)
    problem = "is still busy at the end; unwritten values are lost"
    if method == "record":
        problem = "is too slow; some values are left out"
        for step in range(10):
            recorder.record({}, step)
    recorder.close("done")
    recorder.wait(0.0)
    assert recorder.take_problem() == f"mine {problem} (shown once; training continues)"
    assert recorder.take_problem() is None
    released.set()
