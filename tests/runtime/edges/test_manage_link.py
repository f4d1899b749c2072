"""ManageLink: what is sent to manage and when, and that neither its slowness nor its death stops anything."""

import math

import numpy as np
import pytest

from drl_cli.runtime.edges import manage_link
from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.place.handles import ActorDied, LocalHandle, LocalRef, get
from drl_cli.runtime.roles.parameter_server import ParameterServer


class Clock:
    """Time [s] that passes only while somebody waits; answers come when they are due."""

    def __init__(self):
        self.now, self.due = 0.0, {}

    def wait(self, refs, timeout_s):
        refs = list(refs)
        if not any(self.due[ref] <= self.now for ref in refs):
            self.now += min(timeout_s, min(self.due[ref] for ref in refs) - self.now)
        return [ref for ref in refs if self.due[ref] <= self.now]


class Handle:
    """A manage that takes so long for each call; what it answers to a method may be told, or an error."""

    def __init__(self, clock, delay=1.0, **answers):
        self.clock, self.delay, self.answers, self.calls = clock, delay, answers, []

    def call(self, method, *args):
        args = [get(arg) if isinstance(arg, LocalRef) else arg for arg in args]
        self.calls.append((method, *args))
        answer = self.answers.get(method)
        if method == "evaluate" and answer is None:
            answer = report(args[0].version)
        ref = LocalRef(error=answer) if isinstance(answer, Exception) else LocalRef(answer)
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
    clock = Clock()
    monkeypatch.setattr(manage_link, "now", lambda: clock.now)
    monkeypatch.setattr(manage_link, "wait", clock.wait)
    return clock


def linked(*handles, max_restarts=1, stall_s=math.inf):
    """A link that gets these handles one after the other; `seen` are the reports of its evaluations."""
    left, server, seen = list(handles), ParameterServer(), []
    link = ManageLink(lambda wait: left.pop(0), LocalHandle(server), max_restarts, seen.append, stall_s)
    link.seen = seen
    return link


def pass_time(link, clock, seconds):
    clock.now += seconds
    link.poll()


def test_one_evaluation_at_a_time_and_then_the_newest(clock):
    handle = Handle(clock)
    link = linked(handle)
    for version in (1, 2, 3):
        link.evaluate(load(version), None)
    assert (handle.evaluated, link.skipped, link.evaluated) == ([1], 1, -1)
    pass_time(link, clock, 0.9)
    assert link.seen == []
    pass_time(link, clock, 0.2)
    assert link.seen == [report(1)]
    assert (handle.evaluated, link.evaluated) == ([1, 3], 1)
    pass_time(link, clock, 1.0)
    assert (link.evaluated, link.in_flight()) == (3, [])


def test_reports_do_not_wait_for_an_evaluation_and_answers_come_back(clock):
    handle, done = Handle(clock, commit="the folder"), []
    link = linked(handle)
    link.evaluate(load(1), None)
    link.report({"a": 1.0}, 5)
    link.commit(("draft", 2), done.append)
    link.save(load(1), None)
    assert [method for method, *_ in handle.calls] == ["evaluate", "report", "commit", "save"]
    assert handle.calls[1:3] == [("report", {"a": 1.0}, 5), ("commit", "draft", 2)]
    link.poll()
    assert (len(link.in_flight()), clock.now) == (4, 0.0)  # it has not waited for them
    pass_time(link, clock, 1.0)
    assert (done, link.in_flight()) == (["the folder"], [])


@pytest.mark.parametrize(("answer", "told"), [(("cpu",), ("cpu",)), (None, ())])
def test_what_its_process_has_used_is_told(clock, answer, told):
    handle, heard = Handle(clock, used=answer), []
    link = linked(handle)
    link.used(heard.append)
    assert (handle.calls, heard) == ([("used",)], [])
    pass_time(link, clock, 1.0)
    assert heard == [told]


def test_what_is_sent_before_manage_can_start_is_kept_in_order(clock):
    handle, done = Handle(clock, commit="the folder"), []
    link = linked(None, None, None, None, handle)
    link.report({}, 1)
    link.commit((), done.append)
    link.evaluate(load(1), None)
    link.poll()
    assert (link.handle, link.in_flight()) == (None, [])
    link.poll()
    assert [method for method, *_ in handle.calls] == ["report", "commit", "evaluate"]
    pass_time(link, clock, 1.0)
    assert (done, link.evaluated) == (["the folder"], 1)


def test_a_failure_is_said_once_in_a_row_and_stops_nothing(clock, caplog):
    handle, done = Handle(clock, 0.0, report=OSError("disk full"), commit=KeyError("b")), []
    link = linked(handle)
    for _ in range(3):
        link.report({}, 1)
        link.poll()
    assert caplog.messages == ["manage failed: OSError: disk full"]
    link.commit((), done.append)
    link.poll()
    assert (caplog.messages[1:], done) == (["manage failed: KeyError: 'b'"], [None])
    handle.answers["evaluate"] = report(4, "OSError: disk full")
    link.evaluate(load(4), None)
    link.poll()
    assert (caplog.messages[2:], link.evaluated) == (["manage failed: OSError: disk full"], 4)
    assert (link.restarts, link.gave_up) == (0, False)


@pytest.mark.parametrize(("waiting", "again"), [((), [1]), ((2,), [2])])
def test_one_that_dies_is_replaced_and_evaluates_what_is_newest(clock, caplog, waiting, again):
    first, second, done = Handle(clock, evaluate=ActorDied("signal 9")), Handle(clock), []
    link = linked(first, second)
    for version in (1, *waiting):
        link.evaluate(load(version), None)
        link.server.role.push(load(version), np.zeros(1))  # a new manage takes the newest from there
    clock.now += 0.5
    link.commit((), done.append)  # its answer would come later
    clock.now += 0.6
    link.poll()
    assert caplog.messages == ["manage died (signal 9), restarted 1/1"]
    assert (link.handle, second.evaluated, done) == (second, again, [None])
    pass_time(link, clock, 1.0)
    assert link.evaluated == again[0]


def test_one_that_dies_after_an_evaluation_has_nothing_to_evaluate_again(clock):
    first, second = Handle(clock, report=ActorDied("signal 9")), Handle(clock)
    link = linked(first, second)
    link.evaluate(load(1), None)
    link.server.role.push(load(1), np.zeros(1))
    pass_time(link, clock, 1.0)
    link.report({}, 1)
    pass_time(link, clock, 1.0)
    assert (link.handle, link.evaluated, second.calls) == (second, 1, [])


def test_one_that_dies_too_often_is_given_up_and_training_goes_on(clock, caplog):
    died, done = ActorDied("signal 9"), []
    link = linked(*[Handle(clock, 0.0, report=died) for _ in range(2)])
    for _ in range(2):
        link.report({}, 1)
        link.poll()
    assert caplog.messages[1:] == ["manage died again (signal 9); training goes on without evaluations and checkpoints"]
    assert (link.gave_up, link.restarts) == (True, 2)
    link.commit((), done.append)
    assert done == [None]
    link.evaluate(load(1), None)
    link.finish(load(1), None, 5.0, is_over=lambda: False)
    assert (link.in_flight(), clock.now) == ([], 0.0)


def test_an_evaluation_that_takes_long_is_said_once(clock, caplog):
    link = linked(Handle(clock, 100.0), stall_s=10.0)
    link.evaluate(load(3), None)
    pass_time(link, clock, 10.0)
    assert caplog.messages == []
    for _ in range(3):
        pass_time(link, clock, 1.0)
    assert caplog.messages == ["an evaluation takes longer than 10 s; training goes on"]


def test_the_end_evaluates_the_last_version_once(clock):
    handle = Handle(clock)
    link = linked(None, None, handle)
    link.evaluate(load(1), None)
    link.evaluate(load(2), None)
    link.finish(load(7), None, 5.0, is_over=lambda: False)
    assert (handle.evaluated, link.skipped) == ([7], 2)
    link.finish(load(7), None, 5.0, is_over=lambda: False)
    link.evaluate(load(8), None)
    link.finish(load(8), None, 5.0, is_over=lambda: False)  # it is being evaluated
    assert (handle.evaluated, link.evaluated) == ([7, 8], 8)


def test_the_end_waits_until_manage_can_be_started(clock):
    handle, asked = Handle(clock), []

    def spawn(wait):
        asked.append(wait)
        assert len(asked) < 9
        return handle if wait else None

    link = ManageLink(spawn, LocalHandle(ParameterServer()), 1, lambda report: None)
    link.evaluate(load(7), None)
    assert (asked, link.handle) == ([False], None)
    link.finish(load(7), None, 5.0, is_over=lambda: False)
    assert (asked.count(True), handle.evaluated, link.evaluated) == (1, [7], 7)


def test_the_end_waits_for_what_is_in_flight_unless_it_is_over(clock):
    handle = Handle(clock, 3.0)
    link = linked(handle)
    link.evaluate(load(1), None)
    link.finish(load(2), None, 5.0, is_over=lambda: clock.now >= 1.0)
    assert (handle.evaluated, link.evaluated, clock.now) == ([1], -1, 1.0)
    link.finish(load(2), None, 5.0, is_over=lambda: False)
    assert (handle.evaluated, link.evaluated, clock.now) == ([1, 2], 2, 6.0)


def test_one_that_does_not_answer_at_the_end_is_given_up(clock, caplog):
    link = linked(Handle(clock, 1000.0))
    link.evaluate(load(1), None)
    link.finish(load(2), None, 5.0, is_over=lambda: False)
    assert caplog.messages == ["manage does not answer for 5 s; its last results are missing"]
    assert (link.gave_up, clock.now) == (True, 6.0)


def test_closing_waits_for_reports_and_for_no_evaluation(clock):
    handle = Handle(clock)
    link = linked(handle)
    handle.delay = 1000.0
    link.evaluate(load(1), None)
    handle.delay = 1.0
    link.report({}, 1)
    link.close("done", 5.0)
    assert handle.calls[-1] == ("close", "done")
    assert (link.in_flight(), link.gave_up, clock.now) == ([], False, 1.0)


def test_what_could_not_be_recorded_is_said(clock, caplog):
    handle = Handle(clock, report=["wandb is gone"], close=["mlflow is still busy"])
    link = linked(handle)
    link.report({}, 10)
    link.report({}, 20)
    pass_time(link, clock, 1.0)
    assert [record.getMessage() for record in caplog.records] == ["wandb is gone"] * 2  # manage says each problem once
    caplog.clear()
    link.close("done", 10.0)
    assert [record.getMessage() for record in caplog.records] == ["mlflow is still busy"]
