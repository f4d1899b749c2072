import pytest
from clocks import Clock

from drl_cli.errors import RoleLost
from drl_cli.runtime.edges import calls
from drl_cli.runtime.edges.calls import START_S, Calls, blame
from drl_cli.runtime.place.handles import ActorDied, LocalRef, ObjectLost, get


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves; only the references in `answers` are ready. `waits` are the arguments of waits."""
    clock = Clock()
    clock.answers = ()
    return clock.install(monkeypatch, lambda *args: clock.waits.append(args) or [*clock.answers])


def test_a_role_has_more_time_for_its_first_answer(clock):
    asked = Calls(stall_s=5.0)
    first, second = LocalRef(1), LocalRef(2)
    asked.expect(first, "trainer", get)
    clock.now += 5.0 + START_S
    asked.react([], 0.0, patient=())
    clock.answers = (first,)
    asked.react([], 0.0, patient=())
    asked.expect(second, "trainer", get)
    clock.answers = ()
    clock.now += 5.0
    asked.react([], 0.0, patient=())
    clock.now += 0.1
    asked.react([], 0.0, patient=(second,))
    with pytest.raises(RoleLost, match=r"no answer for 5 s from: trainer$"):
        asked.react([], 0.0, patient=())
    never = Calls(stall_s=5.0)
    never.expect(LocalRef(1), "replay", get)
    clock.now += 5.1 + START_S
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


def test_a_wait_has_the_given_timeout_and_none_below_zero(clock):
    asked, ref, other = Calls(stall_s=5.0), LocalRef(1), LocalRef(2)
    asked.expect(ref, "worker 0", get)
    asked.react([other], 0.25, patient=())
    asked.react([], -3.0, patient=())
    assert clock.waits == [([ref, other], 0.25), ([ref], 0.0)]


def test_a_quiet_answer_is_handled_with_the_next_other_answer(clock):
    asked, seen = Calls(stall_s=5.0), []
    insert, report, other = clock.answers = LocalRef("insert"), LocalRef("report"), LocalRef("evaluation")
    asked.expect(insert, "replay", seen.append, quiet=True)
    asked.expect(report, "trainer", seen.append)
    asked.react([other], 0.25, patient=(), skips_quiet=True)
    assert clock.waits == [([report, other], 0.25), ([insert, report, other], 0.0)]
    assert (seen, asked.quiet, asked.pending) == ([insert, report], set(), {})


def test_quiet_answers_end_a_wait_if_nothing_else_is_pending_or_they_are_needed(clock):
    asked = Calls(stall_s=5.0)
    insert, report, other = LocalRef("insert"), LocalRef("report"), LocalRef("evaluation")
    asked.expect(insert, "replay", get, quiet=True)
    asked.react([other], 0.25, patient=(), skips_quiet=True)
    asked.expect(report, "trainer", get)
    asked.react([other], 0.5, patient=())
    assert clock.waits == [([insert, other], 0.25), ([insert, report, other], 0.5)]


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
    Clock().install(monkeypatch, lambda refs, timeout_s: timeouts.append(timeout_s) or (ready.pop(0) if ready else []))
    assert str(blame(roles, KeyError("peer"))) == "trainer 0 died: signal 9"
    ready.append([alive])
    assert str(blame(roles, OSError("no peer"))) == "no peer; trainer 0 does not answer; trainer 1 does not answer"
    assert set(timeouts) == {calls.GRACE_S}
