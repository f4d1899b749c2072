"""WorkerPool by a clock that passes only while somebody waits: windows, deadlines, and how long members had no work."""

import pytest
from headers import make_block

from drl_cli.errors import NodeGone
from drl_cli.runtime.edges import worker_pool
from drl_cli.runtime.edges.calls import START_S
from drl_cli.runtime.edges.worker_pool import WorkerPool
from drl_cli.runtime.messages import InsertTransition, LoadParams
from drl_cli.runtime.place.handles import ActorDied, LocalRef
from drl_cli.types import Episode

TICK = 0.001
"""Seconds that the shortest wait takes."""


class Clock:
    """References are ready when they are due."""

    def __init__(self):
        self.now, self.due, self.waits = 100.0, {}, []

    def wait(self, refs, timeout_s):
        self.waits.append((self.now, timeout_s))
        first = min(self.due[ref] for ref in refs)
        self.now = min(max(self.now, first), self.now + max(timeout_s, TICK))
        return [ref for ref in refs if self.due[ref] <= self.now]


class Worker:
    """Takes so many seconds for each of its collects, and answers at once when it is killed."""

    def __init__(self, clock, index, seconds, **options):
        self.clock, self.index, self.seconds, self.options = clock, index, list(seconds), options
        self.calls, self.kills = [], 0

    def call(self, method, *args, results):
        self.calls.append(len(args))
        self.header = LocalRef(InsertTransition((make_block(2, worker=self.index),), collect_s=5.0, **self.options))
        self.columns = LocalRef({})
        self.clock.due[self.columns] = self.clock.now + self.seconds.pop(0)
        return [self.header, self.columns]

    def kill(self):
        self.kills += 1
        self.header.error = ActorDied("killed")
        self.clock.due[self.columns] = self.clock.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(worker_pool, "now", lambda: clock.now)
    monkeypatch.setattr(worker_pool, "wait", clock.wait)
    return clock


def make(clock, *seconds, first=10, episodes=(), **options):
    """A pool of a worker for each list of seconds that its collects take."""
    made = lambda index, incarnation: Worker(clock, index, seconds[index - first], episodes=episodes)  # noqa: E731
    return WorkerPool("worker", len(seconds), made, 1, first=first, **options)


def start(pool):
    for member in pool.idle():
        pool.dispatch(member, LoadParams(0, 0, 0), LocalRef())


def test_all_are_gathered_without_a_window_in_order_of_the_members(clock):
    pool = make(clock, [9.0], [2.0], [5.0], first=0)
    start(pool)
    assert [done.member for done in pool.gather(None)] == [0, 1, 2]
    assert (clock.now, pool.busy) == (109.0, {})
    # Until one would hang: the first collect of each, which has START_S besides; none was slower than 5 s after that.
    ends = 100.0 + 60.0 + START_S
    assert clock.waits == [(100.0, ends - 100.0), (102.0, ends + 5.0 - 102.0), (105.0, ends + 5.0 - 105.0)]


def test_a_window_begins_with_the_first(clock):
    pool = make(clock, [9.0], [2.0], [3.5], [4.0])
    start(pool)
    assert [done.member for done in pool.gather(2.0)] == [11, 12, 13]
    assert (clock.now, [member.index for member in pool.idle()]) == (104.0 + TICK, [11, 12, 13])
    assert [wait[1] for wait in clock.waits[1:]] == [2.0, 0.5, 0.0]
    assert [done.member for done in pool.gather(2.0)] == [10]
    assert pool.gather(2.0) == []
    pool = make(clock, [1.0], [1.0], [1.5])
    start(pool)
    assert [done.member for done in pool.gather(0.0)] == [10, 11]


def test_what_can_not_hang_is_waited_for_an_hour_at_a_time(clock):
    pool = make(clock, [5000.0], timeout_s=float("inf"))
    start(pool)
    assert len(pool.gather(None)) == 1
    assert clock.waits == [(100.0, 3600.0), (3700.0, 3600.0)]


def test_one_that_hangs_is_killed_while_the_others_are_gathered(clock):
    pool = make(clock, [1e9, 1.0], [3.0], timeout_s=60.0)
    start(pool)
    first, second = pool.gather(None)
    assert (first.header, first.restarts, second.header is None) == (None, 1, False)
    assert clock.now == 100.0 + 5.0 + 60.0 + START_S
    (member, other) = pool.members
    assert (member.incarnation, member.version, member.collects, member.hung) == (1, -1, 0, False)
    assert (other.version, other.collects, other.incarnation) == (0, 1, 0)
    assert (member.is_back, other.is_back) == (True, False)


def test_time_without_work_is_counted_from_each_ones_first(clock):
    pool = make(clock, [2.0, 4.0], [3.0, 1.0])
    assert pool.wait_seconds(200.0) == 0.0
    clock.now = 110.0
    start(pool)  # until 112 and 113
    pool.gather(None)
    assert pool.wait_seconds(113.0) == 1.0
    clock.now = 120.0
    assert pool.wait_seconds(120.0) == 8.0 + 7.0
    start(pool)
    assert pool.wait_seconds(123.0) == 15.0
    pool.gather(None)  # at 124 and 121
    assert pool.wait_seconds(130.0) == 15.0 + 6.0 + 9.0


def test_members_that_are_gone_wait_no_more(clock):
    def spawn(index, incarnation):
        if incarnation:
            raise NodeGone("node 10.0.0.7 is gone")
        return Worker(clock, index, [1.0 + index], episodes=())

    pool = WorkerPool("proxy", 2, spawn, 0)
    start(pool)
    pool.members[0].handle.kill()
    pool.gather(None)  # at 100 and 102
    assert [member.index for member in pool.members] == [1]
    assert pool.wait_seconds(110.0) == 8.0
    start(pool := make(clock, [3.0], first=0))
    pool.gather(None)
    assert pool.wait_seconds(clock.now + 2.0) == 2.0


def test_a_restart_takes_until_it_has_handed_over_again(clock):
    pool = make(clock, [1e9], [1.0])
    start(pool)
    pool.members[0].handle.kill()
    (ref, *_) = pool.busy
    lost = pool.finish(ref)
    assert (lost.member, lost.header, lost.columns, lost.loaded, lost.restarts) == (10, None, None, False, 1)
    assert (pool.restarts, pool.members[0].lost_at) == (1, 100.0)
    pool.members[0].handle.seconds = [7.0]
    start(pool)
    pool.gather(None)
    assert pool.restart_seconds == [7.0]
    assert pool.members[0].lost_at is None
    assert pool.take_notes() == ["worker 10 died (killed), restarted 1/1 in 7.0 s"]


def test_a_new_member_has_nothing_and_does_not_come_back(clock):
    pool = make(clock, [1.0])
    (member,) = pool.members
    assert (member.incarnation, member.version, member.collects, member.loaded, member.is_back) == (
        0,
        -1,
        0,
        False,
        False,
    )
    assert not pool.fetches(member, LoadParams(-1, 0, 0))
    assert pool.fetches(member, LoadParams(0, 0, 0))


@pytest.mark.parametrize(
    ("fetch", "version", "collects", "ended", "newest", "goes"),
    [
        ("collect", 3, 1, False, 4, True),
        ("collect", 3, 1, False, 3, False),
        (2, 3, 1, True, 4, False),
        (2, 3, 2, False, 4, True),
        (2, 0, 1, False, 4, False),
        (2, -1, 1, False, 0, True),
        ("episode", 0, 2, False, 4, False),
        ("episode", 0, 1, True, 4, True),
        ("episode", 4, 1, True, 4, False),
        ("episode", -1, 1, False, -1, False),  # there are none yet
    ],
)
def test_when_parameters_go_along(clock, fetch, version, collects, ended, newest, goes):
    pool = make(clock, [1.0], fetch=fetch)
    (member,) = pool.members
    member.version, member.collects, member.ended = version, collects, ended
    assert pool.fetches(member, LoadParams(newest, 0, 0)) == goes
    start(pool) if newest == 0 else pool.dispatch(member, LoadParams(newest, 0, 0), LocalRef())
    assert member.loaded == goes
    assert member.handle.calls == [2 if goes else 1]
    assert (member.version, member.collects) == (newest if goes else version, collects + 1)


@pytest.mark.parametrize("episodes", [(), (Episode(0, 1.0, 5),)])
def test_what_was_handed_over_says_whether_an_episode_ended(clock, episodes):
    pool = make(clock, [1.0], episodes=episodes)
    start(pool)
    (done,) = pool.gather(None)
    assert pool.members[0].ended == bool(episodes)
    assert (done.loaded, done.restarts, done.header.episodes) == (True, 0, episodes)
