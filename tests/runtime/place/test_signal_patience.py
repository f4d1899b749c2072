"""One Ctrl-C is enough where an update goes on for long."""

import os
import signal
import threading

import pytest

from drl_cli.runtime.place.signals import PATIENCE_S, Interrupted, Signals


@pytest.fixture
def timers(monkeypatch):
    """What was asked to be called later, by the seconds until then."""
    asked = {}

    class Timer:
        def __init__(self, seconds, function, args):
            asked[seconds] = lambda: function(*args)

        def start(self):
            assert self.daemon

    monkeypatch.setattr(threading, "Timer", Timer)
    return asked


@pytest.fixture
def sent(monkeypatch):
    """Signals that the process sent to itself."""
    signals = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid == os.getpid(), number)))
    return signals


def test_an_update_that_still_goes_on_is_ended_by_the_same_signal(timers, sent, caplog):
    signals, ended = Signals(), []
    signals.soft = lambda: ended.append(True)
    signals.is_updating = lambda: True
    signals.on_end(signal.SIGTERM, None)
    assert (ended, sent) == ([True], [])
    timers[PATIENCE_S]()
    assert sent == [(True, signal.SIGTERM)]
    assert "an update takes more than 10 s: ended without it; the last checkpoint is kept" in caplog.text
    with pytest.raises(Interrupted):
        signals.on_end(signal.SIGTERM, None)
    assert signals.exit_code == 75


@pytest.mark.parametrize("state", ["saving", "closing"])
def test_what_is_no_update_is_waited_for(timers, sent, state):
    signals = Signals()
    signals.soft = lambda: None
    signals.is_updating = lambda: state != "saving"
    signals.on_end(signal.SIGINT, None)
    signals.is_closing = state == "closing"
    timers[PATIENCE_S]()
    assert sent == []
