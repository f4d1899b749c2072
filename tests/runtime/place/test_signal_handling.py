import os
import signal
import subprocess
import sys
import threading

import pytest

from drl_cli.errors import HUNG_UP, INTERRUPTED, TERMINATED
from drl_cli.runtime.place.signals import PATIENCE_S, TOGETHER_S, Interrupted, Signals, catch, ending_with

CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers():
    """Restore the handlers after each test."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 129)])
def test_the_first_signal_is_soft_and_the_second_ends_at_once(clock, number, code):
    asked = []
    with catch() as signals:
        assert signals.exit_code == 0
        signals.soft = lambda: asked.append("soft")
        signals.begin_raising()
        signal.raise_signal(number)
        assert (asked, signals.received, signals.has_raised) == (["soft"], [number], False)
        clock.now += TOGETHER_S
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        assert (asked, signals.has_raised) == (["soft"], True)
        assert signals.exit_code == code  # the code of the first signal
    assert all(signal.getsignal(number) == signal.SIG_IGN for number in NUMBERS)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,) * 3, (signal.SIGINT, signal.SIGTERM)])
def test_signals_in_quick_succession_count_as_one(clock, numbers):
    asked = []
    with catch() as signals:
        signals.soft = lambda: asked.append("soft")
        signals.begin_raising()
        for number in numbers:
            signal.raise_signal(number)
            clock.now += 0.3 * TOGETHER_S
        assert (asked, signals.received, signals.has_raised) == (["soft"], [numbers[0]], False)


def test_a_signal_before_anything_can_be_saved_ends_at_once(clock):
    with catch() as signals:
        signals.begin_raising()
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
    assert (signals.received, signals.has_raised) == ([signal.SIGTERM], True)


def test_a_signal_outside_of_the_run_is_noted_and_ends_the_run_when_it_begins(clock):
    with catch() as signals:
        signal.raise_signal(signal.SIGTERM)
        clock.now += 5.0
        signal.raise_signal(signal.SIGTERM)
        assert not signals.has_raised
        with pytest.raises(Interrupted):
            signals.begin_raising()
    assert signals.exit_code == 75


def test_an_exception_that_python_drops_is_raised_again_by_a_later_signal(clock):
    with catch() as signals:
        signals.begin_raising()
        for _ in range(2):
            with pytest.raises(Interrupted):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # the same moment
            clock.now += TOGETHER_S


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (signal.SIGINT, KeyboardInterrupt, INTERRUPTED),
        (signal.SIGTERM, SystemExit, TERMINATED),
        (signal.SIGHUP, SystemExit, HUNG_UP),
    ],
)
def test_a_signal_before_the_run_ends_the_program_as_usual(number, kind, code):
    with catch() as signals:
        signals.begin_raising()
        with pytest.raises(kind) as ended, ending_with(signals):
            signal.raise_signal(number)
    assert getattr(ended.value, "code", code) == signals.exit_code == code


RAY_STARTS = """
import ctypes, os, signal, sys, threading
from drl_cli.runtime.place.handles import ray

def c_handler():
    action = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).sigaction(signal.SIGTERM, None, action)
    return action.raw[:8]  # the address of the handler

got = []
signal.signal(signal.SIGTERM, lambda *_: got.append("ours"))
before = c_handler()
up, over = threading.Event(), threading.Event()

def session():
    ray.init(address="local", include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    up.set()
    over.wait()  # Ray's processes end with the thread that started them

threading.Thread(target=session, daemon=True).start()
up.wait()
during = c_handler()
ray.shutdown()
assert before == during == c_handler()
signal.raise_signal(signal.SIGTERM)
assert got == ["ours"]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_ray_leaves_the_handler_of_sigterm_alone(tmp_path):
    answer = subprocess.run([sys.executable, "-c", RAY_STARTS], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr


def test_further_signals_of_a_closed_terminal_change_nothing(clock):
    asked = []
    with catch() as signals:
        signals.soft = lambda: asked.append("soft")
        signals.begin_raising()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(number)
            clock.now += 5.0
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


def test_pause_and_the_handlers_afterwards(handlers):
    asked = []
    with catch() as signals:
        signal.raise_signal(signal.SIGUSR1)  # nothing to pause yet
        signals.toggle = lambda: asked.append("toggle")
        signal.raise_signal(signal.SIGUSR1)
    assert (asked, {number: signal.getsignal(number) for number in NUMBERS}) == (["toggle"], handlers)
    assert Signals().exit_code == 0


@pytest.mark.parametrize(("state", "is_sent"), [("updating", True), ("saving", False), ("closing", False)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])  # a second SIGHUP would change nothing
def test_a_long_update_is_ended_by_a_second_signal(clock, monkeypatch, caplog, number, state, is_sent):
    timers, sent, ended = {}, [], []

    class Timer:
        def __init__(self, seconds, function):
            timers[seconds] = function

        def start(self):
            assert self.daemon

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid == os.getpid(), number)))
    signals = Signals()
    signals.soft = lambda: ended.append(True)
    signals.is_updating = lambda: state != "saving"
    signals.begin_raising()
    signals.on_end(number, None)
    assert (ended, sent) == ([True], [])
    signals.raises = state != "closing"
    clock.now += PATIENCE_S
    timers[PATIENCE_S]()
    assert sent == [(True, signal.SIGTERM)] * is_sent
    warning = "an update takes more than 10 s: ended without it; the last checkpoint is kept"
    assert caplog.messages == [warning] * is_sent
    if is_sent:
        with pytest.raises(Interrupted):
            signals.on_end(sent[0][1], None)
        assert signals.exit_code == CODES[number]
