import numpy as np
from handles import FakeHandle
from headers import make_block

from drl_cli.runtime.edges.pool import WorkerPool
from drl_cli.runtime.messages import InsertTransition
from drl_cli.runtime.place.handles import LocalRef, LocalRuntime, get
from drl_cli.runtime.roles import worker_proxy as module
from drl_cli.runtime.roles.worker_proxy import WorkerProxy
from drl_cli.types import Episode, LoadParams


class Worker(FakeHandle):
    """Answers with its rows, an episode and a fault."""

    def __init__(self, index):
        self.index, self.calls = index, []

    def uses(self):
        return LocalRef([f"use of {self.index}"])

    def call(self, method, *args, results=1):
        self.calls.append((method, *[get(arg) if isinstance(arg, LocalRef) else arg for arg in args]))
        if method == "close":
            return LocalRef()
        number, rows = len(self.calls), self.index + 1
        block = make_block(rows, worker=self.index, number=number)
        episode = Episode(self.index, float(number), 5)
        spent = {
            "work_s": 4.0,
            "env_s": 2.0 + self.index,
            "policy_s": 1.0,
            "notes": (f"note of {self.index}",),
        }
        header = InsertTransition((block,), (episode,), 9.0, faults=(f"fault of {self.index}",), **spent)
        return [LocalRef(header), LocalRef({"reward": np.full(rows, 10.0 * self.index + number)})]


class Runtime(LocalRuntime):
    """Notes all values put into the store."""

    def __init__(self):
        self.puts = []

    def put(self, value):
        self.puts.append(value)
        return super().put(value)


def make(num=2):
    workers = [Worker(i) for i in range(num)]
    proxy = WorkerProxy(WorkerPool("worker", range(num), lambda i, incarnation: workers[i], 9), Runtime(), None)
    return proxy, workers


def test_parameters_are_stored_once_and_blocks_are_merged(monkeypatch):
    moments = iter([100.0, 103.0, 200.0, 200.5])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(moments))
    proxy, workers = make()
    params, first, second = np.ones(3), LoadParams(4, 40, 400), LoadParams(5, 50, 500)
    merged, columns = proxy.collect(first, params)
    assert (merged.work_s, merged.env_s, merged.policy_s) == (8.0, 5.0, 2.0)
    assert proxy.runtime.puts == [params]
    assert [worker.calls for worker in workers] == [[("collect", first, params)]] * 2
    assert columns["reward"].tolist() == [1.0, 11.0, 11.0]
    assert [block.worker for block in merged.blocks] == [0, 1]
    assert [episode.env for episode in merged.episodes] == [0, 1]
    assert merged.faults == ("fault of 0", "fault of 1")
    assert (merged.seconds, merged.restarts, merged.notes) == (3.0, 0, ("note of 0", "note of 1"))
    assert {route: count for route, count in merged.routes.items() if count} == {1: 2, 8: 2}
    merged, columns = proxy.collect(first)
    assert proxy.runtime.puts == [params]
    assert workers[0].calls[1:] == [("collect", first)]  # they have this version
    assert (columns["reward"].tolist(), merged.seconds) == ([2.0, 12.0, 12.0], 0.5)
    assert {route: count for route, count in merged.routes.items() if count} == {1: 2}
    moments = iter([0.0] * 9)
    proxy.collect(second, params * 2)
    assert workers[1].calls[-1] == ("collect", second, proxy.runtime.puts[1])


def test_the_window_is_passed_to_the_pool():
    proxy, _ = make()
    windows, gather = [], proxy.pool.gather
    proxy.window_s = 0.25
    proxy.pool.gather = lambda window_s: (windows.append(window_s), gather(window_s))[1]
    proxy.collect(LoadParams(0, 0, 0), np.ones(1))
    assert windows == [0.25]


def test_the_use_of_the_workers_is_asked_for_and_then_returned():
    proxy, _ = make()
    assert (proxy.uses(), proxy.uses()) == ([], ["use of 0", "use of 1"])


def test_closing_closes_the_workers():
    proxy, workers = make(3)
    proxy.close()
    assert [worker.calls for worker in workers] == [[("close",)]] * 3
