"""Signals: what the first and the second do, and what is left as it was."""

import signal

import pytest

from drl_cli.runtime.place.signals import Interrupted, Signals, catch

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers():
    """Whatever the test leaves, they are put back."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_the_first_is_soft_and_the_second_ends_at_once(number, code):
    asked = []
    with catch() as signals:
        assert signals.exit_code == 0
        signals.soft = lambda: asked.append("soft")
        signal.raise_signal(number)
        assert (asked, signals.received, signals.has_raised) == (["soft"], [number], False)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        assert (asked, signals.has_raised) == (["soft"], True)
        assert signals.exit_code == code  # of the first
    assert all(signal.getsignal(number) == signal.SIG_IGN for number in NUMBERS)


def test_before_there_is_anything_to_save_it_ends_at_once():
    with pytest.raises(Interrupted), catch() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert (signals.received, signals.has_raised) == ([signal.SIGTERM], True)


def test_while_it_is_cleaned_up_none_counts():
    with catch() as signals:
        signals.is_closing = True
        signal.raise_signal(signal.SIGINT)
        assert signals.received == []


def test_pausing_and_the_handlers_afterwards(handlers):
    asked = []
    with catch() as signals:
        signal.raise_signal(signal.SIGUSR1)  # there is nothing to pause yet
        signals.toggle = lambda: asked.append("toggle")
        signal.raise_signal(signal.SIGUSR1)
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)  # another has put its own in front
        signals.install()
        signal.raise_signal(signal.SIGUSR1)
    assert asked == ["toggle", "toggle"]
    assert {number: signal.getsignal(number) for number in NUMBERS} == handlers
    assert Signals().exit_code == 0
