"""WorkerPool with workers that die, are out of reach, or are gone with their node; they answer in this process."""

import numpy as np
import pytest

from drl_cli.runtime.errors import NodeGone, RoleLost
from drl_cli.runtime.handles import ActorDied, ActorUnavailable, LocalRef, LocalRuntime
from drl_cli.runtime.messages import Block, InsertTransition, LoadParams
from drl_cli.runtime.worker_pool import WorkerPool
from drl_cli.runtime.worker_proxy import WorkerProxy

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
    return InsertTransition((Block(worker, 0, 0, 2, 0, 2, 0, 0),), (), 0.0)


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


def test_restarts_are_used_up():
    pool = WorkerPool("worker", 1, lambda index, incarnation: Worker(ActorDied("signal 9")), 1)
    collect(pool)
    with pytest.raises(RoleLost, match=r"worker 0 died \(signal 9\); 1 restarts are used up"):
        collect(pool)


def test_a_proxy_hands_over_what_is_left_when_one_of_its_workers_dies():
    def spawn(index, incarnation):
        return Worker(header(index), header(index)) if index or incarnation else Worker(ActorDied("signal 9"))

    proxy = WorkerProxy(WorkerPool("worker", 3, spawn, 1), LocalRuntime(), None)
    merged, columns = proxy.collect(LoadParams(0, 0, 0), np.zeros(3))
    assert [block.worker for block in merged.blocks] == [1, 2]
    assert merged.restarts == 1
    assert len(columns["reward"]) == merged.rows == 4
    merged, columns = proxy.collect(LoadParams(0, 0, 0))
    assert [block.worker for block in merged.blocks] == [0, 1, 2]
    assert merged.restarts == 0
