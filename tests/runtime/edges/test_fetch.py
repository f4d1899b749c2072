from itertools import pairwise

import numpy as np
import pytest
from choices import some
from graphs import COUNTER, workers
from handles import FakeHandle

from drl_cli.runtime.edges.pool import WorkerPool
from drl_cli.runtime.messages import InsertTransition
from drl_cli.runtime.place.handles import ActorDied, LocalRef, get
from drl_cli.types import Episode, LoadParams


class FakeWorker(FakeHandle):
    """Records the parameters of each call; an episode ends in the calls `episodes`."""

    def __init__(self, got, episodes=(), dies_at=None):
        self.got, self.episodes, self.dies_at = got, episodes, dies_at

    def call(self, method, params_header, params=None, results=2):
        if len(self.got) == self.dies_at:
            self.got.append("died")
            return [LocalRef(error=ActorDied("killed")), LocalRef()]
        self.got.append(params)
        ended = (Episode(0, 1.0, 5),) if len(self.got) - 1 in self.episodes else ()
        return [LocalRef(InsertTransition((), ended, 0.0)), LocalRef({})]


def collect(fetch, versions, **worker):
    """Return the parameters of each call, which are their version; `versions` are the newest versions."""
    got = []
    pool = WorkerPool("worker", range(1), lambda index, incarnation: FakeWorker(got, **worker), 3)
    pool.fetch = fetch
    for version in versions:
        (member,) = pool.idle()
        pool.answer(pool.dispatch(member, LoadParams(version, 0, 0), version))
        assert got[-1] == "died" or member.loaded == (got[-1] is not None)
    return got


@pytest.mark.parametrize(
    ("fetch", "versions", "episodes", "expected"),
    [
        ("collect", [-1, 0, 1, 1, 2], (), [None, 0, 1, None, 2]),
        (1, [0, 1, 1, 2], (), [0, 1, None, 2]),
        (3, range(8), (), [0, None, None, 3, None, None, 6, None]),
        (3, [0, 0, 0, 0, 4, 4, 4], (), [0, None, None, None, None, None, 4]),
        ("episode", range(6), (1, 4), [0, None, 2, None, None, 5]),
        ("episode", [-1, 0, 0, 1, 2], (1,), [None, 0, None, None, None]),  # the version was the same after the episode
    ],
)
def test_when_a_worker_gets_parameters(fetch, versions, episodes, expected):
    assert collect(fetch, versions, episodes=episodes) == expected


@pytest.mark.parametrize("fetch", ["collect", 3, "episode"])
def test_a_restarted_worker_gets_parameters_at_once(fetch):
    assert collect(fetch, range(4), dies_at=1)[:3] == [0, "died", 2]


def watch(graph):
    """Record the published parameters by version, and the parameters and the answer of each collect call."""
    published, calls = {}, []
    on_published = graph.learning._on_published

    def note_version(ref, params):
        published[get(ref).version] = get(params).tobytes()
        on_published(ref, params)

    graph.learning._on_published = note_version
    for worker in workers(graph):

        def note_call(params_header, *params, worker=worker, collect=worker.collect):
            header, columns = collect(params_header, *params)
            actor = vars(worker.policy.nets).get("actor")
            held = None if actor is None else np.concatenate([part.ravel() for part in actor.params]).tobytes()
            calls.append((worker, params_header, bool(params), header, held))
            return header, columns

        worker.collect = note_call
    return published, calls


@pytest.mark.parametrize("fetch", ["collect", "4", "episode"])
@pytest.mark.parametrize("proxies", some([0, 1], 1))
def test_blocks_name_the_version_that_acted(build_graph, fetch, proxies):
    graph = build_graph(
        *(COUNTER, "mode=async", "worker.num=2", f"worker.fetch={fetch}", f"worker.proxies={proxies}"),
        *("orchestrator.sample_load_ratio=1", "+env.kwargs.base_length=30", "total_env_steps=800"),
    )
    published, calls = watch(graph)
    graph.run()
    behind = 0
    for _, params_header, came, header, held in calls:
        (block,) = header.blocks
        assert held == published[block.version]
        assert block.version == params_header.version or not came
        behind += params_header.version - block.version
    assert (behind > 0) == (fetch != "collect")
    loads = sum(came for _, _, came, _, _ in calls)
    assert graph.progress.trace.counts[8] == loads
    if not proxies:
        assert graph.progress.trace.counts[7] == loads
    for worker in {worker for worker, *_ in calls}:
        mine = [(came, header) for other, _, came, header, _ in calls if other is worker]
        if fetch == "4":
            assert [came for came, _ in mine[::4]].count(True) == sum(came for came, _ in mine) > 1
        if fetch == "episode":
            for (_, before), (came, _) in pairwise(mine):
                assert not came or before.episodes
            assert sum(came for came, _ in mine) > 1


def test_a_worker_with_old_parameters_explores_by_the_newest_epsilon(build_graph):
    graph = build_graph(
        *("env=drl_cli.envs.probes:Choose-v0", "algo=dqn", "mode=async", "worker.num=2", "worker.fetch=1000"),
        *("algo.epsilon_steps=300", "algo.epsilon_end=0.2", "orchestrator.sample_load_ratio=1"),
    )
    _, calls = watch(graph)
    graph.run()
    assert {header.blocks[0].version for *_, header, _ in calls} == {0}
    assert {worker.policy.exploration["epsilon"] for worker, *_ in calls} == {0.2}
