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
    """Answers each collect call with the next (env_steps, rows), or dies at None."""

    def __init__(self, taken):
        self.taken = list(taken)

    def call(self, method, *args, results=1):
        taken = self.taken.pop(0)
        if taken is None:
            return [LocalRef(error=ActorDied("signal 9")) for _ in range(results)]
        env_steps, rows = taken
        return [LocalRef(InsertTransition((make_block(rows, last_env_step=env_steps),), (), 0.0)), LocalRef({})]


class Replay:
    """Inserts all blocks in one call. A call with a reference of `lost` fails."""

    def __init__(self):
        self.lost, self.inserted = [], []

    def insert(self, headers, columns):
        if any(ref in self.lost for ref in columns):
            return [(LocalRef(error=ObjectLost("node 10.0.0.7 is gone")), [*range(len(headers))])]
        self.inserted.append([header.blocks[0].worker for header in headers])
        return [(LocalRef(len(headers)), [*range(len(headers))])]


def make(*workers, mode="async", **orchestrator):
    """A collector of these workers; each worker is a list with the answers of its incarnations."""
    options = [f"orchestrator.{name}={value}" for name, value in orchestrator.items()]
    config = make_config(*TINY, f"worker.num={len(workers)}", f"worker.block_rows={ROWS}", f"mode={mode}", *options)
    pool = WorkerPool("worker", range(len(workers)), lambda index, life: Worker(workers[index][life:]), 9)
    edges = Edges(pool, Replay(), trainers=None, server=None, manage=None, reanalyzers=None, share=None)
    made = Collector(config, edges, RateLimiter(0.5, 0, 1e9), Progress(config, time.time()), Calls(60.0))
    assert made.rows == ROWS
    return made


def collect(made, version=0):
    for member in reversed(made.pool.idle()):
        made.dispatch(member, LoadParams(version, 0, 0), LocalRef(np.zeros(1)))


def react(made):
    made.calls.react((), 0.0, ())


def test_blocks_are_inserted_and_counted_when_a_worker_dies():
    made = make([(8, 8)], [None], [(8, 7)], mode="sync")
    collect(made, version=4)
    assert (made.issued, made.limiter.inserts, made.is_due()) == (24, 24, False)
    assert made.progress.trace.counts[7] == 3
    react(made)
    assert [done.member for done in made.arrived] == [2, 1, 0]
    assert made.is_due()
    made.flush()
    assert (made.issued, made.inserting, made.arrived, made.is_due()) == (16, 2, [], False)
    assert (made.limiter.inserts, made.limiter.landed) == (15, 15)
    assert made.progress.worker_restarts == 1
    counts = made.progress.trace.counts
    assert (counts[1], counts[2], counts[3], counts[8]) == (2, 2, 2, 2)
    react(made)
    assert made.inserting == 0


def test_a_window_begins_with_the_first_block(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(collector_module, "now", lambda: moment[0])
    made = make([(8, 8)], [(8, 8)], gather_window_s=0.5)
    refs = [made.pool.dispatch(member, LoadParams(0, 0, 0), LocalRef()) for member in made.pool.idle()]
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
        ([(5, 5), (8, 8)], 13, 13),  # an environment failed, or a proxy gathered from some of its workers
        ([(8, 6), (8, 9)], 16, 15),  # rows that are still open in the n-step builder
        ([None, (8, 8)], 8, 8),
    ],
)
def test_issued_steps_are_the_steps_taken_after_each_block(caplog, taken, env_steps, rows):
    made = make(taken)
    for _ in taken:
        collect(made)
        react(made)
        made.flush()
    react(made)
    assert made.issued == made.progress.env_steps == env_steps
    assert made.limiter.inserts == made.limiter.landed == made.progress.inserts == rows
    assert made.inserting == 0
    header, made.inserting = InsertTransition((make_block(7, last_env_step=8),), (), 0.0), 1
    lost = LocalRef(error=ObjectLost("node 10.0.0.7 is gone"))
    made._on_inserted([header], [LocalRef({})], lost)  # the block was lost
    assert made.issued == made.progress.env_steps == env_steps - 8
    assert made.limiter.inserts == made.limiter.landed == made.progress.inserts == rows - 7
    assert made.inserting == 0
    assert caplog.messages[-1] == "a block of 7 transitions was lost on its way to replay (node 10.0.0.7 is gone)"


def test_the_other_blocks_of_a_call_are_inserted_if_one_was_lost(caplog):
    made = make([(8, 8)], [(8, 7)], [(8, 8)])
    collect(made)
    react(made)
    assert [done.member for done in made.arrived] == [2, 1, 0]
    made.replay.lost = [made.arrived[1].columns]
    made.flush()
    assert (made.inserting, len(made.calls.pending), made.replay.inserted) == (3, 1, [])
    assert made.calls.quiet == set(made.calls.pending)
    react(made)  # the call failed: one call for each block
    assert (made.inserting, len(made.calls.pending), len(made.replay.inserted)) == (3, 3, 2)
    react(made)
    assert (made.inserting, made.issued, made.limiter.landed, made.progress.inserts) == (0, 16, 16, 16)
    assert caplog.messages == ["a block of 7 transitions was lost on its way to replay (node 10.0.0.7 is gone)"]


def test_a_proxy_counts_as_all_its_workers():
    made = make([(8, 8)], mode="async")
    made.pool.join(0, share=3)
    del made.pool.members[0]
    collect(made)
    assert (made.issued, made.limiter.inserts, made.uncertain) == (24, 24, 16)
    react(made)
    assert made.uncertain == 16
    made.flush()
    assert (made.issued, made.limiter.inserts, made.uncertain) == (8, 8, 0)
