import numpy as np
import pytest
from clocks import Clock
from handles import FakeHandle
from headers import make_block

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.edges.calls import LOOK_S, START_S
from drl_cli.runtime.edges.pool import WorkerPool
from drl_cli.runtime.messages import InsertTransition, Told
from drl_cli.runtime.place.handles import ActorDied, ActorUnavailable, LocalRef, LocalRuntime
from drl_cli.runtime.place.told import News
from drl_cli.runtime.roles.worker_proxy import WorkerProxy
from drl_cli.types import LoadParams

COLUMNS = {"reward": np.ones(2)}
DIED = ActorDied("signal 9")
TICK = 0.001
"""The time of the shortest wait [s]."""


class Worker(FakeHandle):
    """Answers each collect call with the next answer, a header or an error, after the next number of seconds."""

    def __init__(self, clock, *answers, seconds=()):
        self.clock, self.answers, self.seconds, self.calls = clock, list(answers), list(seconds), []

    def call(self, method, *args, results):
        self.calls.append(len(args))
        answer = self.answers.pop(0)
        self.header = LocalRef(error=answer) if isinstance(answer, Exception) else LocalRef(answer)
        self.columns = LocalRef(COLUMNS)
        self.clock.due[self.columns] = self.clock.now + (self.seconds.pop(0) if self.seconds else 0.0)
        return [self.header, self.columns]

    def kill(self):
        self.header.error = ActorDied("killed")
        self.clock.due[self.columns] = self.clock.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(tick=TICK)
    return clock.install(monkeypatch, clock.wait)


def header(worker=0, seconds=0.0, episodes=()):
    return InsertTransition((make_block(2, worker=worker),), episodes, seconds)


def timed(clock, *seconds, first=0, **options):
    """A pool with one worker for each list of seconds; every block reports 5 s."""

    def spawn(index, incarnation):
        return Worker(clock, *[header(index, 5.0)] * 9, seconds=seconds[index - first])

    return WorkerPool("worker", range(first, first + len(seconds)), spawn, 1, **options)


def dispatch(pool):
    return [pool.dispatch(member, LoadParams(0, 0, 0), LocalRef(np.zeros(3))) for member in pool.idle()]


def collect(pool):
    dispatch(pool)
    return pool.gather(None)


def members(results):
    return [member.index for member, *_ in results]


def test_gather_returns_all_blocks_in_the_order_of_the_members(clock):
    results = collect(pool := timed(clock, [9.0], [2.0], [5.0]))
    assert [answer.blocks[0].worker for _, answer, *_ in results] == members(results) == [0, 1, 2]
    assert all(
        (columns.value is COLUMNS, restarts, member.loaded) == (True, 0, True)
        for member, _, restarts, columns in results
    )
    assert (clock.now, pool.busy) == (109.0, {})
    assert {timeout_s for _, timeout_s in clock.waits} == {LOOK_S}  # then the pool looks whether a worker hangs


def test_a_window_begins_with_the_first_block(clock):
    dispatch(pool := timed(clock, [9.0], [2.0], [3.5], [4.0], first=10))
    assert members(pool.gather(2.0)) == [11, 12, 13]
    assert (clock.now, [member.index for member in pool.idle()]) == (104.0 + TICK, [11, 12, 13])
    assert (members(pool.gather(2.0)), pool.gather(2.0)) == ([10], [])
    dispatch(pool := timed(clock, [1.0], [1.0], [1.5]))
    assert members(pool.gather(0.0)) == [0, 1]


def test_without_a_limit_a_call_may_take_any_time(clock):
    dispatch(pool := timed(clock, [5000.0], timeout_s=float("inf")))
    assert (len(pool.gather(None)), pool.restarts, clock.now) == (1, 0, 5100.0)


def test_a_hanging_worker_is_killed_while_the_others_are_gathered(clock):
    pool = timed(clock, [1e9, 1.0], [3.0])
    (_, lost, restarts, _), (_, answer, *_) = collect(pool)
    assert (lost, restarts, answer is None) == (None, 1, False)
    assert clock.now == 100.0 + 5.0 + 60.0 + START_S
    member, other = pool.members
    assert (member.incarnation, member.version, member.calls, member.hung) == (1, -1, 0, False)
    assert (other.version, other.calls, other.incarnation) == (0, 1, 0)


def test_waiting_time_counts_from_the_first_call_of_each_member(clock):
    pool = timed(clock, [2.0, 4.0], [3.0, 1.0])
    assert pool.wait_seconds(200.0) == 0.0
    clock.now = 110.0
    collect(pool)  # until 112 and 113
    assert pool.wait_seconds(113.0) == 1.0
    clock.now = 120.0
    assert pool.wait_seconds(120.0) == 8.0 + 7.0
    dispatch(pool)
    assert pool.wait_seconds(123.0) == 15.0
    pool.gather(None)  # until 124 and 121
    assert pool.wait_seconds(130.0) == 15.0 + 6.0 + 9.0


def test_a_block_that_arrives_after_the_end_is_no_waiting_time(clock):
    pool = timed(clock, [1.0, 8.0], [2.0])
    collect(pool)  # until 101 and 102
    clock.now = 104.0
    pool.dispatch(pool.members[0], LoadParams(0, 0, 0), LocalRef(np.zeros(3)))
    pool.end(105.0)
    pool.gather(None)  # until 112
    assert pool.wait_seconds(105.0) == 3.0 + 3.0


def test_a_dead_worker_is_replaced_and_gets_the_parameters_again(clock):
    made = []

    def spawn(index, incarnation):
        made.append(Worker(clock, header(index) if incarnation else DIED, seconds=[7.0] if incarnation else []))
        return made[-1]

    pool = WorkerPool("worker", [10], spawn, 1)
    ((member, answer, restarts, _),) = collect(pool)
    assert (member.index, answer, restarts) == (10, None, 1)
    assert (pool.restarts, member.lost_at) == (1, 100.0)
    ((_, answer, *_),) = collect(pool)
    assert (answer, member.loaded, len(made)) == (header(10), True, 2)
    assert (pool.restart_seconds, pool.members[0].lost_at) == ([7.0], None)
    assert pool.take_notes() == ["worker 10 died (signal 9), restarted 1/1 in 7.0 s"]


def test_an_unavailable_worker_is_called_again_and_not_replaced(clock):
    worker = Worker(clock, ActorUnavailable("socket closed"), header())
    pool = WorkerPool("worker", range(1), lambda index, incarnation: worker, 0)
    ((_, answer, restarts, _),) = collect(pool)
    assert (answer, restarts, pool.restarts) == (None, 0, 0)
    assert collect(pool)[0][1] == header()
    assert worker.calls == [2, 2]  # the parameters are sent again, because they may not have arrived


def test_a_member_without_its_node_is_removed(clock, caplog):
    def spawn(index, incarnation):
        if incarnation:
            raise NodeGone("node 10.0.0.7 (abcdef) is gone")
        return Worker(clock, *([header(index)] * 2 if index else [DIED]), seconds=[float(index)])

    pool = WorkerPool("proxy", (), spawn, 0)
    for index in range(3):
        pool.join(index, share=4)
    lost, *others = collect(pool)  # until 100, 101 and 102
    assert (lost[1:3], members(others)) == ((None, 0), [1, 2])
    assert caplog.messages == ["node 10.0.0.7 (abcdef) is gone: going on with 8 of 12 workers"]
    assert (pool.wait_seconds(110.0), members(collect(pool))) == (9.0 + 8.0, [1, 2])
    with pytest.raises(RoleLost, match="is gone, and with it the last worker"):
        collect(WorkerPool("worker", range(1), spawn, 10))


def test_all_members_of_a_lost_node_are_removed_with_one_line(clock, caplog):
    def spawn(index, incarnation):
        if incarnation > 5:
            raise NodeGone("node 10.0.0.7 (abcdef) is gone")
        return Worker(clock, *([header(index)] * 2 if index == 0 else [DIED]), seconds=[float(index)])

    pool = WorkerPool("worker", range(3), spawn, 9, incarnation=5, node_of=lambda index: "b" if index else "a")
    lost = collect(pool)[1:]  # workers 1 and 2 die after another
    assert [done[1:3] for done in lost] == [(None, 0)] * 2
    assert caplog.messages == ["node 10.0.0.7 (abcdef) is gone: going on with 1 of 3 workers"]
    assert ([member.index for member in pool.members], pool.restarts, pool.incarnation) == ([0], 0, 6)
    before = pool.wait_seconds(clock.now)
    pool.end(clock.now)
    assert pool.wait_seconds(clock.now + 9.0) == before  # the removed workers do not wait


def test_a_worker_that_dies_too_often_ends_the_run(clock):
    causes = ("signal 9", "signal 11", "never built")

    def spawn(index, incarnation):
        return Worker(clock, *([header(index)] * 9 if index else [ActorDied(causes[incarnation])]))

    pool = WorkerPool("worker", range(2), spawn, 1)
    collect(pool)
    message = (
        r"worker 0 died \(signal 11\); 1 restarts are used up \(worker.max_restarts\); "
        r"the first time it died \(signal 9\)$"
    )
    with pytest.raises(RoleLost, match=message):
        collect(pool)


def test_each_worker_has_its_own_restarts_and_incarnations(clock):
    born = []

    def spawn(index, incarnation):
        born.append((index, incarnation))
        return Worker(clock, header(index), DIED)

    pool = WorkerPool("worker", range(2), spawn, 3, incarnation=5)
    for _ in range(7):
        collect(pool)
    assert born == [(index, incarnation) for incarnation in (5, 6, 7, 8) for index in (0, 1)]
    assert ([member.incarnation for member in pool.members], pool.restarts) == ([8, 8], 6)
    with pytest.raises(RoleLost, match="worker 0 died"):
        collect(pool)


def test_a_restart_is_reported_with_the_next_block(clock, caplog):
    caplog.set_level("INFO")
    answers = {0: [header(), DIED], 1: [ActorDied("signal 11")], 2: [header(), header()]}
    pool = WorkerPool("worker", range(1), lambda index, incarnation: Worker(clock, *answers[incarnation]), 7)
    for _ in range(3):
        collect(pool)
    assert caplog.messages == [
        "worker 0 died (signal 9)",
        "worker 0 died (signal 9), restarted 1/7, and lost again before its first block",
        "worker 0 died (signal 11)",
    ]
    assert pool.restart_seconds == []
    for _ in range(2):
        collect(pool)
    assert caplog.messages[3:] == ["worker 0 died (signal 11), restarted 2/7 in 0.0 s"]
    assert pool.restart_seconds == [0.0]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]


def test_the_deadline_follows_the_slowest_block(clock, caplog):
    pool = WorkerPool("worker", range(2), lambda *_: Worker(clock, *[header(seconds=30.0)] * 9), 3, timeout_s=5.0)
    dispatch(pool)
    pool.kill_overdue(100 + START_S + 5 - 0.1)
    assert [restarts for *_, restarts, _ in pool.gather(None)] == [0, 0]  # the first call of a process may take long
    first, second = dispatch(pool)
    pool.answer(second)
    for moment, hung in ((100 + 30 + 4.9, False), (135, True), (136, True)):  # a member is killed once
        pool.kill_overdue(moment)
        assert pool.members[0].hung == hung
    _, answer, restarts = pool.answer(first)
    assert (answer, restarts, [member.incarnation for member in pool.members]) == (None, 1, [1, 0])
    dispatch(pool)
    assert pool.members[0].loaded
    pool.kill_overdue(134.9)
    assert [restarts for *_, restarts, _ in pool.gather(None)] == [0, 0]
    assert caplog.messages == ["worker 0 hung: no block for 35 s (worker.step_timeout_s), restarted 1/3 in 0.0 s"]


def test_a_worker_that_hangs_too_often_ends_the_run(clock):
    pool = WorkerPool("worker", range(1), lambda *_: Worker(clock, header(), seconds=[1e9]), 1, timeout_s=5.0)
    collect(pool)
    with pytest.raises(RoleLost, match=r"worker 0 hung: no block for 65 s .* the first time it hung: no block"):
        collect(pool)


def test_a_proxy_returns_the_blocks_that_are_left_when_a_worker_dies(clock):
    def spawn(index, incarnation):
        return Worker(clock, *([header(index)] * 2 if index or incarnation else [DIED]))

    proxy = WorkerProxy(WorkerPool("worker", range(3), spawn, 1), LocalRuntime(), None)
    merged, columns = proxy.collect(LoadParams(0, 0, 0), np.zeros(3))
    assert ([block.worker for block in merged.blocks], (merged.restarts, merged.notes)) == ([1, 2], (1, ()))
    assert len(columns["reward"]) == merged.rows == 4
    merged, columns = proxy.collect(LoadParams(0, 0, 0))
    assert [block.worker for block in merged.blocks] == [0, 1, 2]
    assert (merged.restarts, merged.notes) == (0, ("worker 0 died (signal 9), restarted 1/1 in 0.0 s",))
    assert proxy.pool.take_notes() == []


class Teller(FakeHandle):
    """Tells the steps that the test sets."""

    answer = ()

    def told(self):
        return News(self.answer)


def test_steps_of_running_calls_are_counted_once():
    tellers = [Teller(), Teller()]
    pool = WorkerPool("worker", range(2), lambda index, incarnation: tellers[index], 1)
    assert pool.running_steps({}) == 0
    tellers[0].answer, tellers[1].answer = [Told(0, 0, 5)], [Told(1, 70, 3)]  # worker 1 was resumed
    assert pool.running_steps({}) == 8
    assert pool.running_steps({0: 20}) == 3  # the old answer of worker 0 does not count again
    tellers[0].answer = [[0, 20, 2]]
    assert pool.running_steps({0: 20}) == 5
