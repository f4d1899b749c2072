import pytest

from drl_cli.errors import RoleLost
from drl_cli.runtime.edges import calls
from drl_cli.runtime.edges.calls import START_S, Calls, blame
from drl_cli.runtime.place.handles import ActorDied, LocalRef, ObjectLost, get


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves; only the references in `answers` are ready."""

    class Clock:
        time, answers = 1000.0, ()

    clock = Clock()
    monkeypatch.setattr(calls, "now", lambda: clock.time)
    monkeypatch.setattr(calls, "wait", lambda refs, timeout_s: list(clock.answers))
    return clock


def test_a_role_has_more_time_for_its_first_answer(clock):
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
    never = Calls(stall_s=5.0)
    never.expect(LocalRef(1), "replay", get)
    clock.time += 5.1 + START_S
    with pytest.raises(RoleLost, match="replay"):
        never.react([], 0.0, patient=())


def test_an_answer_goes_to_its_function_and_others_to_nobody(clock):
    asked, refs, seen = Calls(stall_s=5.0), [LocalRef(i) for i in range(4)], []
    for role, ref in zip(("worker 0", "worker 12", "parameter server", "worker 0"), refs, strict=True):
        asked.expect(ref, role, seen.append)
    clock.answers = (refs[1], refs[2], LocalRef("of another object"))
    asked.react([clock.answers[2]], 0.0, patient=())
    assert seen == refs[1:3]
    assert list(asked.pending) == [refs[0], refs[3]]


def test_a_wait_has_the_given_timeout_and_none_below_zero(monkeypatch):
    asked, waited = Calls(stall_s=5.0), []
    ref, other = LocalRef(1), LocalRef(2)
    monkeypatch.setattr(calls, "wait", lambda refs, timeout_s: waited.append((refs, timeout_s)) or [])
    asked.expect(ref, "worker 0", get)
    asked.react([other], 0.25, patient=())
    asked.react([], -3.0, patient=())
    assert waited == [([ref, other], 0.25), ([ref], 0.0)]


def test_a_quiet_answer_is_handled_with_the_next_other_answer(monkeypatch):
    asked, waited, seen = Calls(stall_s=5.0), [], []
    insert, report, other = LocalRef("insert"), LocalRef("report"), LocalRef("evaluation")

    def wait(refs, timeout_s):
        waited.append((refs, timeout_s))
        return refs if timeout_s == 0.0 else []

    monkeypatch.setattr(calls, "wait", wait)
    asked.expect(insert, "replay", seen.append, quiet=True)
    asked.expect(report, "trainer", seen.append)
    asked.react([other], 0.25, patient=(), skips_quiet=True)
    assert waited == [([report, other], 0.25), ([insert, report, other], 0.0)]
    assert (seen, asked.quiet, asked.pending) == ([insert, report], set(), {})


def test_quiet_answers_end_a_wait_if_nothing_else_is_pending_or_they_are_needed(monkeypatch):
    asked, waited = Calls(stall_s=5.0), []
    insert, report, other = LocalRef("insert"), LocalRef("report"), LocalRef("evaluation")
    monkeypatch.setattr(calls, "wait", lambda refs, timeout_s: waited.append((refs, timeout_s)) or [])
    asked.expect(insert, "replay", get, quiet=True)
    asked.react([other], 0.25, patient=(), skips_quiet=True)
    asked.expect(report, "trainer", get)
    asked.react([other], 0.5, patient=())
    assert waited == [([insert, other], 0.25), ([insert, report, other], 0.5)]


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ActorDied("signal 9"), RoleLost, "replay 1 died: signal 9"),
        (ObjectLost("node 10.0.0.7 is gone"), ObjectLost, "node 10.0.0.7 is gone"),
        (KeyError("a bug of ours"), KeyError, "a bug of ours"),
    ],
)
def test_errors_of_roles_are_raised(clock, error, kind, says):
    asked, ref = Calls(stall_s=5.0), LocalRef(error=error)
    clock.answers = (ref,)
    asked.expect(ref, "replay 1", get)
    with pytest.raises(kind, match=says):
        asked.react([], 0.0, patient=())


class Role:
    """Answers a ping with its process id, or with the error that it died of."""

    def __init__(self, answer):
        self.answer = answer

    def ping(self):
        return self.answer


def test_the_dead_or_silent_role_is_blamed(monkeypatch):
    alive, dead, silent = LocalRef(17), LocalRef(error=ActorDied("signal 9")), LocalRef(18)
    roles = {"replay 0": Role(alive), "trainer 0": Role(dead), "trainer 1": Role(silent)}
    ready, timeouts = [[alive], [dead]], []
    monkeypatch.setattr(calls, "now", lambda: 100.0)
    monkeypatch.setattr(
        calls, "wait", lambda refs, timeout_s: timeouts.append(timeout_s) or (ready.pop(0) if ready else [])
    )
    assert str(blame(roles, KeyError("peer"))) == "trainer 0 died: signal 9"
    ready.append([alive])
    assert str(blame(roles, OSError("no peer"))) == "no peer; trainer 0 does not answer; trainer 1 does not answer"
    assert set(timeouts) == {calls.GRACE_S}
