"""ManageLink with a manage that dies, or that is called with parameters that are gone; it answers in this process."""

import math

import numpy as np
import pytest

from drl_cli.runtime.edges.manage_link import ManageLink
from drl_cli.runtime.messages import EvalReport, LoadParams
from drl_cli.runtime.place.handles import ActorDied, LocalHandle, LocalRef, ObjectLost
from drl_cli.runtime.roles.parameter_server import ParameterServer

GONE = LocalRef(error=ObjectLost("node 10.0.0.7 is gone"))


class Manage:
    """Notes what it was called with."""

    def __init__(self):
        self.evaluated, self.saved = [], []

    def evaluate(self, params_header, params):
        self.evaluated.append((params_header.version, params.tolist()))
        return EvalReport(params_header, 0.0, {"mean": 1.0}, 0, is_best=False)

    def save(self, params_header, params):
        self.saved.append((params_header.version, params.tolist()))
        return "folder"


class Dying(LocalHandle):
    """Dies when it evaluates."""

    def call(self, method, *args, results=1):
        return LocalRef(error=ActorDied("signal 9")) if method == "evaluate" else super().call(method, *args)


def version(number):
    return LoadParams(number, 10 * number, 100 * number)


@pytest.fixture
def server():
    """Has version 5."""
    server = ParameterServer()
    server.push(version(5), np.full(2, 5.0))
    return LocalHandle(server)


def linked(server, *handles, max_restarts=3):
    """A link that gets these handles one after the other; `seen` are the reports of its evaluations."""
    handles, seen = list(handles), []
    link = ManageLink(lambda wait: handles.pop(0), server, max_restarts, seen.append)
    link.seen = seen
    return link


def test_a_restarted_manage_evaluates_the_newest_version_that_the_server_has(server):
    manage = Manage()
    link = linked(server, Dying(Manage()), LocalHandle(manage))
    link.evaluate(version(4), LocalRef(np.full(2, 4.0)))
    for _ in range(2):
        link.poll()
    assert manage.evaluated == [(5, [5.0, 5.0])]
    assert [report.params_header for report in link.seen] == [version(5)]
    assert (link.restarts, link.evaluated) == (1, 5)


def test_a_restarted_manage_that_was_not_evaluating_is_not_asked_to(server):
    manage = Manage()
    dead = Dying(Manage())
    dead.call = lambda method, *args, results=1: LocalRef(error=ActorDied("signal 9"))
    link = linked(server, dead, LocalHandle(manage))
    link.report({}, 100)
    for _ in range(3):
        link.poll()
    assert link.restarts == 1
    assert manage.evaluated == []


def test_an_evaluation_whose_parameters_are_gone_is_of_the_servers(server):
    manage = Manage()
    link = linked(server, LocalHandle(manage))
    link.evaluate(version(6), GONE)
    for _ in range(2):
        link.poll()
    assert manage.evaluated == [(5, [5.0, 5.0])]
    assert link.restarts == 0  # manage itself is well


def test_where_the_servers_are_gone_too_it_is_said_and_not_tried_again(caplog):
    server = LocalHandle(None)
    server.call = lambda method, results: [GONE, GONE]
    link = linked(server, LocalHandle(Manage()))
    link.finish(version(6), GONE, math.inf, is_over=lambda: False)
    assert link.seen == []
    assert caplog.messages == ["manage failed: node 10.0.0.7 is gone"]


@pytest.mark.parametrize(("params", "saved"), [(LocalRef(np.full(2, 6.0)), 6), (GONE, 5)])
def test_a_model_is_saved_from_the_server_only_when_its_parameters_are_gone(server, params, saved):
    manage = Manage()
    link = linked(server, LocalHandle(manage))
    link.save(version(6), params)
    link.close("failed", 10.0)
    assert manage.saved == [(saved, [float(saved)] * 2)]
    assert link.restarts == 0
