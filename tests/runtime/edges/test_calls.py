"""Who is given up, and when."""

import pytest

from drl_cli.runtime.edges import calls
from drl_cli.runtime.edges.calls import START_S, Calls
from drl_cli.runtime.errors import RoleLost
from drl_cli.runtime.place.handles import LocalRef, get


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when told to; no answer is ever there but those in `answers`."""

    class Clock:
        time, answers = 1000.0, ()

    clock = Clock()
    monkeypatch.setattr(calls, "now", lambda: clock.time)
    monkeypatch.setattr(calls, "wait", lambda refs, timeout_s: list(clock.answers))
    return clock


def test_a_role_may_take_longer_for_its_first_answer_than_for_others(clock):
    asked = Calls(stall_s=5.0)
    first, second = LocalRef(1), LocalRef(2)
    asked.expect(first, "trainer", get)
    clock.time += 5.0 + START_S
    asked.react([], 0.0, patient=())
    clock.answers = (first,)
    asked.react([], 0.0, patient=())
    asked.expect(second, "trainer", get)
    clock.answers = ()
    clock.time += 5.0
    asked.react([], 0.0, patient=())
    clock.time += 0.1
    asked.react([], 0.0, patient=(second,))
    with pytest.raises(RoleLost, match=r"no answer for 5 s from: trainer$"):
        asked.react([], 0.0, patient=())


def test_one_that_never_starts_is_lost_too(clock):
    asked = Calls(stall_s=5.0)
    asked.expect(LocalRef(1), "replay", get)
    clock.time += 5.1 + START_S
    with pytest.raises(RoleLost, match="replay"):
        asked.react([], 0.0, patient=())
