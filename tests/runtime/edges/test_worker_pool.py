"""WorkerPool with workers that die, hang, are out of reach, or gone with their node; they answer in this process."""

import dataclasses

import numpy as np
import pytest
from headers import make_insert

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.edges.worker_pool import WorkerPool
from drl_cli.runtime.messages import LoadParams
from drl_cli.runtime.place.handles import ActorDied, ActorUnavailable, LocalRef, LocalRuntime
from drl_cli.runtime.roles.worker_proxy import WorkerProxy

COLUMNS = {"reward": np.ones(2)}


class Worker:
    """Answers `collect` with what comes next in its list: a header, or how it fails."""

    def __init__(self, *answers):
        self.answers, self.calls = list(answers), []

    def call(self, method, *args, results=1):
        self.calls.append((method, *args))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            return [LocalRef(error=answer), LocalRef(error=answer)]
        return [LocalRef(answer), LocalRef(COLUMNS)]


def header(worker):
    return make_insert(2, worker=worker)


def collect(pool):
    for member in pool.idle():
        pool.dispatch(member, LoadParams(0, 0, 0), LocalRef(np.zeros(3)))
    return pool.gather(None)


def test_results_are_in_order_of_the_members_and_name_the_columns():
    pool = WorkerPool("worker", 3, lambda index, incarnation: Worker(header(index)), 0)
    results = collect(pool)
    assert [done.header.blocks[0].worker for done in results] == [done.member for done in results] == [0, 1, 2]
    assert all(done.columns.value is COLUMNS and done.restarts == 0 for done in results)


def test_a_dead_worker_is_replaced_and_gets_the_parameters_again():
    made = []

    def spawn(index, incarnation):
        made.append(Worker(ActorDied("signal 9") if incarnation == 0 else header(index)))
        return made[-1]

    pool = WorkerPool("worker", 1, spawn, 1)
    (died,) = collect(pool)
    assert (died.header, died.restarts, pool.restarts) == (None, 1, 1)
    (done,) = collect(pool)
    assert done.header == header(0)
    assert done.loaded
    assert len(made) == 2


def test_a_worker_out_of_reach_is_asked_again_and_not_replaced():
    worker = Worker(ActorUnavailable("socket closed"), header(0))
    pool = WorkerPool("worker", 1, lambda index, incarnation: worker, 0)
    (lost,) = collect(pool)
    assert (lost.header, lost.restarts, pool.restarts) == (None, 0, 0)
    (done,) = collect(pool)
    assert done.header == header(0)
    assert [len(call) for call in worker.calls] == [3, 3]  # the parameters go along again: did it get them?


def test_a_member_whose_node_is_gone_is_dropped_with_a_warning(caplog):
    def spawn(index, incarnation):
        if incarnation:
            raise NodeGone("node 10.0.0.7 (abcdef) is gone")
        return Worker(header(index), header(index)) if index else Worker(ActorDied("node died"))

    pool = WorkerPool("proxy", 3, spawn, 0, share=4)
    lost, *others = collect(pool)
    assert (lost.header, lost.restarts) == (None, 0)
    assert [done.member for done in others] == [1, 2]
    assert caplog.messages == ["node 10.0.0.7 (abcdef) is gone: going on with 8 of 12 workers"]
    assert [done.member for done in collect(pool)] == [1, 2]


def test_without_any_member_left_the_run_ends():
    def spawn(index, incarnation):
        if incarnation:
            raise NodeGone("node 10.0.0.7 (abcdef) is gone")
        return Worker(ActorDied("node died"))

    with pytest.raises(RoleLost, match="is gone, and with it the last worker"):
        collect(WorkerPool("worker", 1, spawn, 10))


def dying(*causes):
    """Each incarnation of worker 0 dies of the next cause; the others live."""

    def spawn(index, incarnation):
        return Worker(ActorDied(causes[incarnation])) if index == 0 else Worker(*[header(index)] * 9)

    return spawn


def test_restarts_are_used_up():
    pool = WorkerPool("worker", 2, dying("signal 9", "signal 11", "never built"), 1)
    collect(pool)
    with pytest.raises(
        RoleLost,
        match=r"worker 0 died \(signal 11\); 1 restarts are used up \(worker.max_restarts\); "
        r"the first time it died \(signal 9\)$",
    ):
        collect(pool)


def test_every_worker_has_restarts_of_its_own():
    pool = WorkerPool("worker", 3, lambda i, incarnation: Worker(*[header(i)] * incarnation, ActorDied("signal 9")), 2)
    for _ in range(5):
        collect(pool)
    assert pool.restarts == 6
    with pytest.raises(RoleLost, match="worker 0 died"):
        collect(pool)


def test_every_replacement_has_an_incarnation_of_its_own():
    born = []

    def spawn(index, incarnation):
        born.append((index, incarnation))
        return Worker(header(index), ActorDied("signal 9"))

    pool = WorkerPool("worker", 2, spawn, 3, incarnation=5)
    for _ in range(6):
        collect(pool)
    assert born == [(index, incarnation) for incarnation in (5, 6, 7, 8) for index in (0, 1)]
    assert [member.incarnation for member in pool.members] == [8, 8]


def test_a_restart_is_said_when_it_has_handed_over(caplog):
    caplog.set_level("INFO")
    answers = {0: [header(0), ActorDied("signal 9")], 1: [ActorDied("signal 11")], 2: [header(0), header(0)]}
    pool = WorkerPool("worker", 1, lambda index, incarnation: Worker(*answers[incarnation]), 7)
    for _ in range(2):
        collect(pool)
    assert caplog.messages == ["worker 0 died (signal 9)"]
    collect(pool)
    assert caplog.messages[1:] == [
        "worker 0 died (signal 9), restarted 1/7, and lost again before its first block",
        "worker 0 died (signal 11)",
    ]
    assert pool.restart_seconds == []
    for _ in range(2):
        collect(pool)
    assert caplog.messages[3:] == ["worker 0 died (signal 11), restarted 2/7 in 0.0 s"]
    assert len(pool.restart_seconds) == 1
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]


class Hanging(Worker):
    """Whoever kills it has the call answered so."""

    def kill(self):
        self.ref.error = ActorDied("killed")

    def call(self, method, *args, results=1):
        self.ref, columns = super().call(method, *args, results=results)
        return [self.ref, columns]


def dispatch(pool):
    return [pool.dispatch(member, LoadParams(0, 0, 0), LocalRef(np.zeros(3))) for member in pool.idle()]


def test_one_that_hangs_is_killed_and_replaced(caplog):
    slow = dataclasses.replace(header(0), collect_s=30.0)
    pool = WorkerPool("worker", 2, lambda index, incarnation: Hanging(*[slow] * 9), 3, timeout_s=5.0)
    assert pool.next_deadline() == float("inf")
    dispatch(pool)
    issued = pool.members[0].issued
    assert pool.next_deadline() == issued + START_S + 5
    pool.kill_overdue(pool.next_deadline() - 0.1)
    assert [done.restarts for done in pool.gather(None)] == [0, 0]  # the first of a process may take long
    first, second = dispatch(pool)
    pool.finish(second)
    deadline = pool.next_deadline()
    assert deadline == pool.members[0].issued + 30 + 5
    pool.kill_overdue(deadline)
    assert pool.next_deadline() == float("inf")  # it is not killed again
    pool.kill_overdue(deadline + 1)
    done = pool.finish(first)
    assert (done.header, done.restarts, pool.members[0].incarnation, pool.members[1].incarnation) == (None, 1, 1, 0)
    dispatch(pool)
    assert pool.members[0].loaded
    assert pool.next_deadline() == pool.members[1].issued + 35
    assert [done.restarts for done in pool.gather(None)] == [0, 0]
    assert caplog.messages == ["worker 0 hung: no block for 35 s (worker.step_timeout_s), restarted 1/3 in 0.0 s"]


def test_one_that_hangs_again_and_again_ends_the_run():
    pool = WorkerPool("worker", 1, lambda index, incarnation: Hanging(header(0)), 1, timeout_s=5.0)
    for _ in range(2):
        (ref,) = dispatch(pool)
        pool.kill_overdue(pool.next_deadline())
        if not pool.restarts:
            pool.finish(ref)
    with pytest.raises(RoleLost, match=r"worker 0 hung: no block for 65 s .* the first time it hung: no block"):
        pool.finish(ref)


def test_a_proxy_hands_over_what_is_left_when_one_of_its_workers_dies():
    def spawn(index, incarnation):
        return Worker(header(index), header(index)) if index or incarnation else Worker(ActorDied("signal 9"))

    proxy = WorkerProxy(WorkerPool("worker", 3, spawn, 1), LocalRuntime(), None)
    merged, columns = proxy.collect(LoadParams(0, 0, 0), np.zeros(3))
    assert [block.worker for block in merged.blocks] == [1, 2]
    assert merged.restarts == 1
    assert merged.notes == ()
    assert len(columns["reward"]) == merged.rows == 4
    merged, columns = proxy.collect(LoadParams(0, 0, 0))
    assert [block.worker for block in merged.blocks] == [0, 1, 2]
    assert merged.restarts == 0
    assert merged.notes == ("worker 0 died (signal 9), restarted 1/1 in 0.0 s",)  # for the user, who is elsewhere
    assert proxy.pool.take_notes() == []
