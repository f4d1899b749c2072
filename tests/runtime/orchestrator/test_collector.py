"""Collector: what counts as issued, taken and landed when collects come back with less than was asked for."""

import time

import numpy as np
import pytest
from graphs import TINY, make_config
from headers import make_block

from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.edges.worker_pool import WorkerPool
from drl_cli.runtime.messages import InsertTransition, LoadParams
from drl_cli.runtime.orchestrator import collector as collector_module
from drl_cli.runtime.orchestrator.collector import Collector
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import RateLimiter
from drl_cli.runtime.place.handles import ActorDied, LocalRef, ObjectLost

ROWS = 8


class Worker:
    """Takes so many environment steps, for so many rows, in each collect; None: it dies."""

    def __init__(self, taken):
        self.taken = list(taken)

    def call(self, method, *args, results=1):
        taken = self.taken.pop(0)
        if taken is None:
            return [LocalRef(error=ActorDied("signal 9")) for _ in range(results)]
        env_steps, rows = taken
        return [LocalRef(InsertTransition((make_block(rows, last_env_step=env_steps),), (), 0.0)), LocalRef({})]


class Replay:
    """Takes everything."""

    def insert(self, header, columns):
        return LocalRef(header.rows)


def collect(*taken):
    """A hand-over of one worker after these collects of ROWS steps each."""
    config, calls = make_config(*TINY, "worker.num=1", f"worker.block_rows={ROWS}"), Calls(60.0)
    pool = WorkerPool("worker", 1, lambda index, incarnation: Worker(taken[incarnation:]), 9)
    edges = Edges(pool, Replay(), trainers=None, server=None, manage=None, share=None)
    made = Collector(config, edges, RateLimiter(0.5, 0, 1e9), Progress(config, time.time()), calls)
    assert made.rows == ROWS
    for _ in taken:
        (member,) = pool.idle()
        made.dispatch(member, LoadParams(0, 0, 0), LocalRef(np.zeros(1)))
        calls.react((), 0.0, ())
        made.flush()
    calls.react((), 0.0, ())
    return made


def test_what_arrived_with_a_dead_worker_is_handed_over_and_counted():
    config, calls = make_config(*TINY, "worker.num=3", f"worker.block_rows={ROWS}", "mode=sync"), Calls(60.0)
    taken = [[(8, 8)], [None], [(8, 7)]]
    pool = WorkerPool("worker", 3, lambda index, incarnation: Worker(taken[index][incarnation:]), 9)
    edges = Edges(pool, Replay(), trainers=None, server=None, manage=None, share=None)
    made = Collector(config, edges, RateLimiter(0.5, 0, 1e9), Progress(config, time.time()), calls)
    for member in reversed(pool.idle()):
        made.dispatch(member, LoadParams(4, 0, 0), LocalRef(np.zeros(1)))
    assert (made.issued, made.limiter.inserts, made.is_due()) == (24, 24, False)
    assert made.progress.trace.counts[7] == 3
    calls.react((), 0.0, ())
    assert [done.member for done in made.arrived] == [2, 1, 0]
    assert made.is_due()
    made.flush()
    assert (made.issued, made.inserting, made.arrived, made.is_due()) == (16, 2, [], False)
    assert (made.limiter.inserts, made.limiter.landed) == (15, 15)
    assert made.progress.worker_restarts == 1
    counts = made.progress.trace.counts
    assert (counts[1], counts[2], counts[3], counts[8]) == (2, 2, 2, 2)
    calls.react((), 0.0, ())
    assert made.inserting == 0


def test_a_block_that_is_lost_on_its_way_is_counted_out_again(caplog):
    made = collect((8, 7))
    lost, header = [], InsertTransition((make_block(7, last_env_step=8),), (), 0.0)
    made.progress.lost, made.inserting = lost.append, 1
    made._on_inserted(header, LocalRef(error=ObjectLost("node 10.0.0.7 is gone")))
    assert lost == [header]
    assert (made.issued, made.inserting, made.limiter.inserts, made.limiter.landed) == (0, 0, 0, 0)
    assert caplog.messages == ["a block of 7 transitions was lost on its way to replay (node 10.0.0.7 is gone)"]


def test_a_window_begins_with_what_arrives_first(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(collector_module, "now", lambda: moment[0])
    config, calls = make_config(*TINY, "worker.num=2", "mode=async", "orchestrator.gather_window_s=0.5"), Calls(60.0)
    pool = WorkerPool("worker", 2, lambda index, incarnation: Worker([(8, 8), (8, 8)]), 9)
    made = Collector(config, Edges(pool, Replay(), *[None] * 4), RateLimiter(0.5, 0, 1e9), Progress(config, 0.0), calls)
    refs = [pool.dispatch(member, LoadParams(0, 0, 0), LocalRef()) for member in pool.idle()]
    assert made.window_ends == float("inf")
    made._on_collected(refs[0])
    moment[0] = 100.4
    assert (made.window_ends, made.is_due()) == (100.5, False)
    moment[0] = 100.5
    assert made.is_due()
    made._on_collected(refs[1])
    assert made.window_ends == 100.5
    made.flush()
    assert made.window_ends == float("inf")


@pytest.mark.parametrize(
    ("taken", "env_steps", "rows"),
    [
        ([(8, 8), (8, 8)], 16, 16),
        ([(5, 5), (8, 8)], 13, 13),  # an environment failed, or a proxy has gathered from some
        ([(8, 6), (8, 9)], 16, 15),  # rows that are still open in the n-step builder
        ([None, (8, 8)], 8, 8),
    ],
)
def test_after_a_hand_over_issued_is_what_was_taken(taken, env_steps, rows):
    made = collect(*taken)
    assert made.issued == made.progress.env_steps == env_steps
    assert made.limiter.inserts == made.limiter.landed == made.progress.inserts == rows
    assert made.inserting == 0
