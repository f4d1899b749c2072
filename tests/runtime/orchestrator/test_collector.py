import time
from types import SimpleNamespace

import numpy as np
import pytest
from graphs import TINY, make_config
from handles import FakeHandle
from headers import make_block

from drl_cli.runtime.edges.calls import Calls
from drl_cli.runtime.edges.pool import ReanalyzerPool, WorkerPool
from drl_cli.runtime.messages import InsertTransition, ReanalysisReport, UpdatePriority
from drl_cli.runtime.orchestrator.collector import Collector
from drl_cli.runtime.orchestrator.edges import Edges
from drl_cli.runtime.orchestrator.progress import Progress
from drl_cli.runtime.orchestrator.rate_limiter import RateLimiter
from drl_cli.runtime.orchestrator.reanalysis import Reanalysis
from drl_cli.runtime.place.handles import ActorDied, LocalRef, ObjectLost
from drl_cli.types import LoadParams

ROWS = 8


class Worker(FakeHandle):
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
    learning = SimpleNamespace(params_header=LoadParams(version, 0, 0), params=(params := LocalRef(np.zeros(1))))
    learning.pull = lambda: params
    for member in reversed(made.pool.idle()):
        made.dispatch(member, learning)


def react(made):
    made.calls.react((), 0.0, ())


def test_blocks_are_inserted_and_counted_when_a_worker_dies():
    made = make([(8, 8)], [None], [(8, 7)], mode="sync")
    collect(made, version=4)
    assert (made.issued, made.limiter.inserts, made.is_due()) == (24, 24, False)
    assert made.progress.trace.counts[7] == 3
    react(made)
    assert [member.index for member, *_ in made.arrived] == [2, 1, 0]
    assert made.is_due()
    made.insert_arrived()
    assert (made.issued, made.inserting, made.arrived, made.is_due()) == (16, 2, [], False)
    assert ((made.limiter.inserts, made.limiter.landed), made.progress.worker_restarts) == ((15, 15), 1)
    counts = made.progress.trace.counts
    assert (counts[1], counts[2], counts[3], counts[8]) == (2, 2, 2, 2)
    react(made)
    assert made.inserting == 0


def test_a_window_begins_with_the_first_block(clock):
    made = make([(8, 8)], [(8, 8)], gather_window_s=0.5)
    refs = [made.pool.dispatch(member, LoadParams(0, 0, 0), LocalRef()) for member in made.pool.idle()]
    assert made.window_ends == float("inf")
    made._on_collected(refs[0])
    clock.now = 100.4
    assert (made.window_ends, made.is_due()) == (100.5, False)
    clock.now = 100.5
    assert made.is_due()
    made._on_collected(refs[1])
    assert made.window_ends == 100.5
    made.insert_arrived()
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
        made.insert_arrived()
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
    assert [member.index for member, *_ in made.arrived] == [2, 1, 0]
    made.replay.lost = [made.arrived[1][-1]]
    made.insert_arrived()
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
    made.insert_arrived()
    assert (made.issued, made.limiter.inserts, made.uncertain) == (8, 8, 0)


SEARCHES = ("env=CartPole-v1", "algo=gumbel_muzero", "mode=async", "reanalyzer.num=1", "reanalyzer.windows=2")
UNTRAINED, TRAINED, NEWER = LoadParams(0, 0, 0), LoadParams(1, 16, 64), LoadParams(2, 32, 128)
MOST = 2 * 16


class Reanalyzer(FakeHandle):
    """Answers with `steps` searched steps, or dies if the next of `deaths` is True. Notes the number of arguments."""

    def __init__(self, steps, deaths=()):
        self.steps, self.deaths, self.calls = steps, list(deaths), []

    def call(self, method, *args, results):
        self.calls.append((method, len(args)))
        if self.deaths and self.deaths.pop(0):
            return [LocalRef(error=ActorDied("signal 9"))] * 2
        report = ReanalysisReport(steps=self.steps, seconds=0.1)
        return [LocalRef(report), LocalRef(UpdatePriority(np.zeros((1, 2, 16)), None, {}))]


class Made:
    def __init__(self, *overrides, steps=MOST, free=False, deaths=()):
        config = make_config(*TINY, *SEARCHES, "replay.capacity=4000", *overrides)
        self.members = [Reanalyzer(steps, deaths), *(Reanalyzer(steps) for _ in deaths)]
        self.pool = ReanalyzerPool("reanalyzer", range(1), lambda _, life: self.members[life], 3, timeout_s=9.0)
        self.written, self.drawn = [], []
        replay = SimpleNamespace(
            draw=lambda message: (self.drawn.append(message), (5, (LocalRef("header"), LocalRef("columns"))))[1],
            update_priorities=lambda shard, values: (self.written.append(shard), LocalRef(None))[1],
        )
        server = FakeHandle(call=lambda method, results: [LocalRef(method), LocalRef("params")])
        edges = Edges(None, replay, None, server, None, self.pool, share=None)
        self.limiter = RateLimiter(0.25, config.min_inserts, 1e9, free)
        self.progress = SimpleNamespace(
            reanalyzed_steps=0,
            reanalyzer_restarts=0,
            reanalyzed=self.count,
            trace=SimpleNamespace(add=lambda route: None),
        )
        self.calls = Calls(60.0)
        self.reanalysis = Reanalysis(config, edges, self.limiter, self.progress, self.calls)

    def count(self, report):
        self.progress.reanalyzed_steps += report.steps

    def land(self, rows):
        self.limiter.issue_collect(rows)
        self.limiter.land(rows, rows)

    def search(self, pushed=TRAINED):
        """Let the re-analyser work as long as the ratio allows."""
        before = -1
        while before != (before := self.reanalysis.done):
            self.reanalysis.go_on(pushed, 0)
            self.calls.react((), 0.0, ())


def test_it_begins_with_the_first_version_that_has_updates():
    """Untrained networks have found nothing that is worth storing. Until then, workers never wait."""
    made = Made()
    made.land(640)
    made.search(UNTRAINED)
    assert made.drawn == []
    assert made.reanalysis.may_collect(100_000)
    made.search(TRAINED)
    assert made.reanalysis.start == 640
    assert made.drawn


def test_it_waits_for_the_end_of_the_warm_up():
    made = Made()
    made.land(63)
    made.search()
    assert made.drawn == []
    made.land(1)
    made.search()
    assert made.drawn


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("steps", [MOST, 7])
def test_the_ratio_is_held(ratio, steps):
    """Steps of windows are counted without padding, so that short windows do not lower the ratio."""
    made = Made(f"reanalyzer.ratio={ratio}", steps=steps)
    made.land(64)
    made.search()
    half = made.reanalysis.band / 2
    assert made.reanalysis.band == 2 * (ratio * 32 + MOST)
    for _ in range(200):
        if made.reanalysis.may_collect(32):
            made.land(32)
        made.search()
        due = ratio * (made.limiter.landed - 64)
        assert due <= made.reanalysis.done <= due + half
    assert made.limiter.landed == 64 + 200 * 32
    assert made.progress.reanalyzed_steps == made.reanalysis.done == steps * len(made.written)
    assert made.reanalysis.scalars()["perf/reanalyzed_per_transition"] == made.reanalysis.done / (200 * 32)


@pytest.mark.parametrize("free", [False, True])
def test_workers_wait_for_late_re_analysers_unless_the_limiter_is_free(free):
    made = Made(free=free)
    made.land(64)
    made.reanalysis.start = 64
    collects = 0
    while made.reanalysis.may_collect(32) and collects < 1000:
        made.land(32)
        collects += 1
    assert collects == (1000 if free else made.reanalysis.band / 2 // 32)
    made.search() if not free else made.reanalysis.go_on(TRAINED, 0)
    assert made.reanalysis.may_collect(32)


def test_a_call_in_flight_counts_with_all_steps_of_its_windows():
    made = Made(steps=7)
    made.land(64)
    made.reanalysis.go_on(TRAINED, 0)
    assert (made.reanalysis.behind, made.reanalysis.done) == (-MOST, 0)
    made.calls.react((), 0.0, ())
    assert (made.reanalysis.behind, made.reanalysis.done) == (-7, 7)


def test_only_newer_parameters_are_fetched_from_the_server():
    made = Made()
    for pushed in (TRAINED, TRAINED, NEWER):
        made.land(640)
        made.reanalysis.go_on(pushed, 0)
        made.calls.react((), 0.0, ())
    assert made.members[0].calls == [("reanalyze", 4), ("reanalyze", 2), ("reanalyze", 4)]


def test_a_dead_re_analyser_is_replaced_and_its_call_is_not_counted():
    made = Made(deaths=[False, True])
    made.land(64)
    made.search()
    made.search()
    assert made.progress.reanalyzer_restarts == 1
    assert made.members[1].calls[0] == ("reanalyze", 4)  # a new process has no parameters
    answered = len(made.members[0].calls) - 1 + len(made.members[1].calls)
    assert (made.reanalysis.done, made.written) == (answered * MOST, [5] * answered)


def test_a_resumed_run_continues_the_counts():
    made, other = Made(), Made()
    made.land(640)
    made.search()
    other.reanalysis.load_state(made.reanalysis.state()["reanalysis"])
    assert (other.reanalysis.start, other.reanalysis.done) == (640, made.reanalysis.done)
    assert made.reanalysis.done > 0


def test_a_run_without_re_analysers_searches_nothing():
    made = Made("reanalyzer.num=0")
    made.pool.members.clear()
    made.land(640)
    made.search()
    assert (made.drawn, made.reanalysis.state()) == ([], {})
