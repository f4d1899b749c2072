import os
import signal
import subprocess
import sys
import threading

import pytest

from drl_cli.runtime.place.signals import PATIENCE_S, Interrupted, Signals, catch

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers():
    """Restore the handlers after each test."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 129)])
def test_the_first_signal_is_soft_and_the_second_ends_at_once(number, code):
    asked = []
    with catch() as signals:
        assert signals.exit_code == 0
        signals.soft = lambda: asked.append("soft")
        signal.raise_signal(number)
        assert (asked, signals.received, signals.has_raised) == (["soft"], [number], False)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        assert (asked, signals.has_raised) == (["soft"], True)
        assert signals.exit_code == code  # the code of the first signal
    assert all(signal.getsignal(number) == signal.SIG_IGN for number in NUMBERS)


def test_a_signal_before_anything_can_be_saved_ends_at_once():
    with pytest.raises(Interrupted), catch() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert (signals.received, signals.has_raised) == ([signal.SIGTERM], True)


def test_further_signals_of_a_closed_terminal_change_nothing():
    asked = []
    with catch() as signals:
        signals.soft = lambda: asked.append("soft")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(number)
        assert (asked, signals.received, signals.has_raised) == (["soft"], [signal.SIGTERM], False)
        assert signals.exit_code == 75


def test_under_nohup_the_signal_of_a_closed_terminal_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with catch() as signals:
        signals.install()
        signal.raise_signal(signal.SIGHUP)
        assert signals.received == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_streams_of_a_closed_terminal_go_nowhere_and_others_stay(tmp_path):
    code = """
import os, pty, sys
from drl_cli.runtime.place.signals import leave_terminal
master, slave = pty.openpty()
os.dup2(slave, 1); os.close(slave)
leave_terminal()
assert os.isatty(1)
os.close(master)
try:
    os.write(1, b"lost")
    raise SystemExit("the terminal is open")
except OSError:
    pass
leave_terminal()
os.write(1, b"nothing")
print("kept", file=sys.stderr)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "kept\n")


def test_signals_while_closing_are_ignored():
    with catch() as signals:
        signals.is_closing = True
        signal.raise_signal(signal.SIGINT)
        assert signals.received == []


def test_pause_and_the_handlers_afterwards(handlers):
    asked = []
    with catch() as signals:
        signal.raise_signal(signal.SIGUSR1)  # nothing to pause yet
        signals.toggle = lambda: asked.append("toggle")
        signal.raise_signal(signal.SIGUSR1)
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)  # as if Ray had installed its own
        signals.install()
        signal.raise_signal(signal.SIGUSR1)
    assert (asked, {number: signal.getsignal(number) for number in NUMBERS}) == (["toggle", "toggle"], handlers)
    assert Signals().exit_code == 0


@pytest.mark.parametrize(("state", "is_sent"), [("updating", True), ("saving", False), ("closing", False)])
def test_a_long_update_is_ended_by_the_same_signal(monkeypatch, caplog, state, is_sent):
    timers, sent, ended = {}, [], []

    class Timer:
        def __init__(self, seconds, function, args):
            timers[seconds] = lambda: function(*args)

        def start(self):
            assert self.daemon

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid == os.getpid(), number)))
    signals = Signals()
    signals.soft = lambda: ended.append(True)
    signals.is_updating = lambda: state != "saving"
    signals.on_end(signal.SIGTERM, None)
    assert (ended, sent) == ([True], [])
    signals.is_closing = state == "closing"
    timers[PATIENCE_S]()
    assert sent == [(True, signal.SIGTERM)] * is_sent
    warning = "an update takes more than 10 s: ended without it; the last checkpoint is kept"
    assert caplog.messages == [warning] * is_sent
    if is_sent:
        with pytest.raises(Interrupted):
            signals.on_end(signal.SIGTERM, None)
        assert signals.exit_code == 75
