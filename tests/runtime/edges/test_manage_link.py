import math

import numpy as np
import pytest
from clocks import Clock
from handles import FakeHandle

from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.messages import EvalReport
from drl_cli.runtime.place.handles import ActorDied, LocalHandle, LocalRef, ObjectLost, get
from drl_cli.runtime.roles.parameter_server import ParameterServer
from drl_cli.types import LoadParams

GONE = LocalRef(error=ObjectLost("node 10.0.0.7 is gone"))
DIED = ActorDied("signal 9")


class Manage(FakeHandle):
    """A handle of a manage that takes `delay` seconds for each call; `answers` are answers or errors by method."""

    def __init__(self, clock, delay=1.0, **answers):
        self.clock, self.delay, self.answers, self.calls = clock, delay, answers, []
        self.killed = False

    def ping(self):
        self.clock.due[ref := LocalRef(1)] = self.clock.now + self.delay
        return ref

    def kill(self):
        self.killed = True

    def call(self, method, *args):
        ref = LocalRef(self.answers.get(method))
        try:
            args = [get(arg) if isinstance(arg, LocalRef) else arg for arg in args]
        except ObjectLost as error:
            ref.error = error
        else:
            self.calls.append((method, *args))
            if method == "evaluate" and ref.value is None:
                ref.value = report(args[0].version)
            if isinstance(ref.value, Exception):
                ref.error = ref.value
        self.clock.due[ref] = self.clock.now + self.delay
        return ref

    @property
    def evaluated(self):
        return [args[0].version for method, *args in self.calls if method == "evaluate"]


def load(version):
    return LoadParams(version, version, 10 * version)


def report(version, problem=None):
    return EvalReport(load(version), 1.0, {"mean": 0.0}, 0, False, problem)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(now=0.0)
    return clock.install(monkeypatch, clock.wait)


@pytest.fixture
def linked(clock):
    """Make a link that gets these handles one after the other; `seen` are the reports of its evaluations.

    The parameter server has version 5. `written` are the calls of the writer in this process.
    """

    def make(*handles, max_restarts=1, stall_s=math.inf, has_answered=True):
        left, seen, server = list(handles), [], ParameterServer()
        server.push(load(5), np.full(2, 5.0))
        writer = FakeHandle(call=lambda *call: link.written.append(call) or LocalRef("here"))
        spawn = lambda wait: left.pop(0)  # noqa: E731
        link = ManageLink(spawn, LocalHandle(server), writer, max_restarts, seen.append, stall_s)
        link.seen, link.written, link.has_answered = seen, [], has_answered
        return link

    return make


def pass_time(link, clock, seconds=1.0):
    clock.now += seconds
    link.poll()


def never():
    return False


def test_one_evaluation_runs_and_only_the_newest_version_waits(clock, linked):
    handle = Manage(clock)
    link = linked(handle)
    for version in (1, 2, 3):
        link.evaluate(load(version), None)
    assert (handle.evaluated, link.skipped, link.evaluated) == ([1], 1, -1)
    pass_time(link, clock, 0.9)
    assert link.seen == []
    pass_time(link, clock, 0.2)
    assert link.seen == [report(1)]
    assert (handle.evaluated, link.evaluated) == ([1, 3], 1)
    pass_time(link, clock)
    assert (link.evaluated, [*link.pending]) == (3, [])


def test_calls_do_not_wait_for_an_evaluation(clock, caplog, linked):
    manage, done = Manage(clock, commit="the folder", report=["wandb is gone"]), []
    link = linked(manage)
    link.evaluate(load(1), None)
    link.report({"a": 1.0}, 5)
    link.commit("draft", 2, [], done.append)
    link.save(load(1), None)
    assert [method for method, *_ in manage.calls] == ["evaluate", "report", "commit", "save"]
    assert manage.calls[1:3] == [("report", {"a": 1.0}, 5), ("commit", "draft", 2)]
    link.poll()
    assert (len([*link.pending]), clock.now, done) == (4, 0.0, [])  # the link has not waited for the answers
    pass_time(link, clock)
    assert (done, [*link.pending], caplog.messages) == (["the folder"], [], ["wandb is gone"])


def test_calls_before_manage_can_start_are_sent_later_in_order(clock, caplog, linked):
    handle = Manage(clock, report=["wandb is gone"])
    link = linked(None, None, None, handle)
    link.report({}, 1)
    link.evaluate(load(1), None)
    link.poll()
    assert (link.handle, [*link.pending]) == (None, [])
    link.poll()
    assert [method for method, *_ in handle.calls] == ["report", "evaluate"]
    pass_time(link, clock)
    assert (caplog.messages, link.evaluated) == (["wandb is gone"], 1)


def test_failures_with_the_same_cause_give_one_warning(clock, caplog, linked):
    handle, done = Manage(clock, 0.0, report=OSError("disk full"), commit=KeyError("b")), []
    link = linked(handle)
    for _ in range(3):
        link.report({}, 1)
        link.poll()
    assert caplog.messages == ["manage failed: OSError: disk full"]
    link.commit("draft", None, [], done.append)
    link.poll()
    assert (caplog.messages[1:], done) == (["manage failed: KeyError: 'b'"], [None])
    handle.answers["evaluate"] = report(4, "OSError: disk full")
    link.evaluate(load(4), None)
    link.poll()
    assert (caplog.messages[2:], link.evaluated, link.failure) == ([], 4, None)
    for file in ("a", "b"):
        link._warn(f"OSError: [Errno 28] No space left on device: '{file}'")
    assert caplog.messages[2:] == ["manage failed: OSError: [Errno 28] No space left on device: 'a'"]
    assert (link.restarts, link.lost) == (0, None)
    handle.answers["evaluate"] = KeyError("mine")
    link.evaluate(load(5), None)
    link.poll()
    assert (link.failure, link.evaluated) == ("KeyError: 'mine'", 4)


@pytest.mark.parametrize("waiting", [(), (2,)])
def test_a_restarted_manage_repeats_the_evaluation_or_makes_the_one_that_waits(clock, caplog, linked, waiting):
    first, second, done = Manage(clock, evaluate=DIED), Manage(clock), []
    link = linked(first, second)
    for version in (1, *waiting):
        link.evaluate(load(version), None)
    clock.now += 0.5
    link.commit("draft", None, [], done.append)  # its answer would come later
    clock.now += 0.6
    link.poll()
    assert caplog.messages == ["manage died (signal 9), restarted 1/1"]
    newest = max(1, *waiting, 0)
    assert (link.handle, second.evaluated, done, link.is_evaluating) == (second, [newest], [None], True)
    pass_time(link, clock)
    assert (link.evaluated, link.seen, link.is_evaluating) == (newest, [report(newest)], False)


@pytest.mark.parametrize("evaluated", [(), (1,)])
def test_a_restarted_manage_that_was_idle_evaluates_nothing(clock, linked, evaluated):
    first, second = Manage(clock, report=DIED), Manage(clock)
    link = linked(first, second)
    for version in evaluated:
        link.evaluate(load(version), None)
        pass_time(link, clock)
    link.report({}, 1)
    for _ in range(3):
        pass_time(link, clock)
    assert (link.handle, link.restarts, second.calls) == (second, 1, [])
    assert link.evaluated == max(evaluated, default=-1)


def test_lost_parameters_are_replaced_by_the_servers(clock, linked):
    manage = Manage(clock)
    link = linked(manage)
    link.evaluate(load(6), GONE)
    for _ in range(2):
        pass_time(link, clock)
    assert (manage.evaluated, link.restarts) == ([5], 0)


def test_parameters_that_the_server_has_lost_too_are_reported_once(clock, caplog, linked):
    link = linked(Manage(clock))
    link.server.ask_parts = lambda num, method: (GONE, GONE)
    link.finish(load(6), GONE, math.inf, is_over=never)
    assert (link.seen, caplog.messages) == ([], ["manage failed: node 10.0.0.7 is gone"])


@pytest.mark.parametrize(("params", "saved"), [(LocalRef(np.full(2, 6.0)), 6), (GONE, 5)])
def test_a_model_is_saved_from_the_server_only_if_its_parameters_are_lost(clock, linked, params, saved):
    link, told = linked(manage := Manage(clock)), []
    link.save(load(6), params, told.append)
    link.close("failed", 10.0)
    assert len(told) == 1
    ((header, vector),) = [args for method, *args in manage.calls if method == "save"]
    assert (header, vector.tolist(), link.restarts) == (load(saved), [float(saved)] * 2, 0)


def test_a_manage_that_dies_too_often_is_given_up(clock, caplog, linked):
    died, done = DIED, []
    link = linked(*[Manage(clock, 0.0, report=died) for _ in range(2)])
    for _ in range(2):
        link.report({}, 1)
        link.poll()
    lost = "manage died (signal 9); 1 restarts are used up (manage.max_restarts)"
    assert caplog.messages[1:] == [f"{lost}; training goes on without evaluations and records, and saves checkpoints"]
    assert (link.lost, link.restarts) == (lost, 2)
    link.commit("draft", "params", ["state"], done.append)
    link.save(load(1), "params", done.append)
    assert done == ["here", "here"]
    assert link.written == [("commit", "draft", "params", "state"), ("save", load(1), "params")]
    link.evaluate(load(1), None)
    assert not link.is_evaluating
    link.finish(load(1), None, 5.0, is_over=never)
    assert ([*link.pending], clock.now) == ([], 0.0)
    link.close("failed", 5.0)
    assert link.written[2:] == [("close", "failed")]


def test_this_process_writes_checkpoints_until_manage_has_answered(clock, linked):
    manage, done = Manage(clock, commit="the folder"), []
    link = linked(manage, has_answered=False)
    link.commit("before its start", None, [], done.append)
    link.evaluate(load(1), None)  # manage starts
    link.commit("it may save a model now", None, [], done.append)
    pass_time(link, clock)
    link.commit("it has answered", None, [], done.append)
    pass_time(link, clock)
    assert done == ["here", "the folder", "the folder"]
    assert [args[1] for args in link.written] == ["before its start"]
    assert [args[0] for method, *args in manage.calls if method == "commit"] == [
        "it may save a model now",
        "it has answered",
    ]


def test_an_error_of_the_writer_does_not_count_as_manages_death(clock, caplog, linked):
    link, done = linked(Manage(clock), has_answered=False), []
    link.writer.call = lambda *call: LocalRef(error=KeyError("b"))
    link.commit("draft", None, [], done.append)
    assert (done, link.restarts, caplog.messages) == ([None], 0, ["manage failed: KeyError: 'b'"])


@pytest.mark.parametrize("call", ["report", "commit"])
def test_a_manage_that_does_not_answer_is_killed_and_restarted(clock, caplog, linked, call):
    stopped, again, done = Manage(clock, 1e9), Manage(clock, commit="the folder"), []
    link = linked(stopped, again, stall_s=6.0)
    if call == "report":
        link.report({}, 1)
    else:
        link.commit("draft", None, [], done.append)
    pass_time(link, clock, 6.0)
    assert not stopped.killed
    pass_time(link, clock, 0.1)
    assert (stopped.killed, link.handle, link.restarts) == (True, again, 1)
    assert caplog.messages == ["manage does not answer for 6 s, restarted 1/1"]
    assert done == [None] * (call == "commit")
    again.delay = 1e9
    link.report({}, 2)
    pass_time(link, clock, 6.1)
    assert link.restarts == 1  # a new process may take START_S longer
    pass_time(link, clock, START_S)
    assert link.lost == "manage does not answer for 6 s; 1 restarts are used up (manage.max_restarts)"


def test_a_manage_that_stops_in_the_last_evaluation_is_found_by_a_ping(clock, linked):
    stopped, again = Manage(clock, 1e9), Manage(clock)
    link = linked(stopped, again, stall_s=6.0)
    link.finish(load(7), None, 60.0, is_over=never)
    assert (stopped.killed, again.evaluated, link.evaluated) == (True, [7], 7)
    assert clock.now < 10.0


def test_a_long_evaluation_gives_one_warning(clock, caplog, linked):
    link = linked(Manage(clock, 100.0), stall_s=10.0)
    link.evaluate(load(3), None)
    pass_time(link, clock, 10.0)
    assert (caplog.messages, link.is_evaluating) == ([], True)
    for _ in range(3):
        pass_time(link, clock)
    assert caplog.messages == ["an evaluation takes longer than 10 s; training goes on"]
    assert not link.is_evaluating  # nobody waits for it any longer
    link.evaluate(load(4), None)
    assert not link.is_evaluating
    pass_time(link, clock, 100.0)
    assert (link.seen, link.is_evaluating) == ([report(3)], True)


def test_an_evaluation_that_was_late_is_not_waited_for_when_another_manage_repeats_it(clock, linked):
    stopped, again = Manage(clock, 1000.0), Manage(clock, 1000.0)
    link = linked(stopped, again, stall_s=10.0)
    link.evaluate(load(3), None)
    for _ in range(2):
        pass_time(link, clock, 10.0)
    assert not link.is_evaluating
    link.report({}, 1)
    pass_time(link, clock, 10.1 + START_S)
    assert (stopped.killed, again.evaluated, link.restarts) == (True, [3], 1)
    assert not link.is_evaluating


def test_finish_evaluates_the_last_version_once(clock, linked):
    handle = Manage(clock)
    link = linked(None, None, handle)
    link.evaluate(load(1), None)
    link.evaluate(load(2), None)
    link.finish(load(7), None, 5.0, is_over=never)
    assert (handle.evaluated, link.skipped) == ([7], 2)
    link.finish(load(7), None, 5.0, is_over=never)
    link.evaluate(load(8), None)
    link.finish(load(8), None, 5.0, is_over=never)  # it is being evaluated
    assert (handle.evaluated, link.evaluated) == ([7, 8], 8)


def test_finish_waits_until_manage_can_start(clock, linked):
    handle, asked = Manage(clock), []

    def spawn(wait):
        asked.append(wait)
        assert len(asked) < 9
        return handle if wait else None

    link = ManageLink(spawn, LocalHandle(ParameterServer()), None, 1, lambda report: None)
    link.evaluate(load(7), None)
    assert (asked, link.handle, link.is_evaluating) == ([False], None, True)
    link.finish(load(7), None, 5.0, is_over=never)
    assert (asked.count(True), handle.evaluated, link.evaluated) == (1, [7], 7)


def test_finish_waits_for_the_running_evaluation_until_the_run_is_over(clock, linked):
    handle = Manage(clock, 3.0)
    link = linked(handle)
    link.evaluate(load(1), None)
    link.finish(load(2), None, 5.0, is_over=lambda: clock.now >= 1.0)
    assert (handle.evaluated, link.evaluated, clock.now) == ([1], -1, 1.0)
    link.finish(load(2), None, 5.0, is_over=never)
    assert (handle.evaluated, link.evaluated, clock.now) == ([1, 2], 2, 6.0)


def test_finish_gives_up_without_an_answer(clock, caplog, linked):
    link = linked(Manage(clock, 1000.0))
    link.evaluate(load(1), None)
    link.finish(load(2), None, 5.0, is_over=never)
    assert caplog.messages == ["manage does not answer for 5 s; its last results are missing"]
    assert (link.lost, clock.now) == (None, 6.0)
    link.close("done", 5.0)
    assert link.handle.calls[-1] == ("close", "done")


def test_close_does_not_wait_for_the_start_of_manage_after_a_bug_of_the_user(linked):
    link = linked(None, None)
    link.report({}, 1)
    link.close("failed", 5.0, starts=False)
    assert (link.handle, link.lost) == (None, None)


def test_close_waits_for_reports_but_not_for_an_evaluation(clock, linked):
    handle = Manage(clock)
    link = linked(handle)
    handle.delay = 1000.0
    link.evaluate(load(1), None)
    handle.delay = 1.0
    link.report({}, 1)
    link.close("done", 5.0)
    assert handle.calls[-1] == ("close", "done")
    assert ([*link.pending], link.lost, clock.now) == ([], None, 1.0)
