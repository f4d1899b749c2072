import pytest
from graphs import COUNTER, TINY, make_config

from drl_cli.runtime.place.handles import LocalRuntime
from drl_cli.runtime.process_graph import make_pool, make_proxy, make_seats

RESTARTS = 3
ARGS = (COUNTER, "mode=sync", "worker.num=2", f"worker.max_restarts={RESTARTS}")


class Births(LocalRuntime):
    """A runtime that builds only proxies and notes the incarnation of every role."""

    def __init__(self):
        self.born = []

    def spawn(self, role, factory, *args, **where):
        self.born.append((role, args[-2]))  # the last one is the program of a converted policy
        return super().spawn(role, make_proxy if factory is make_proxy else lambda *args: None, *args)


def births(incarnation, proxies):
    runtime, config = Births(), make_config(*TINY, *ARGS, f"worker.proxies={proxies}")
    make_pool(config, None, runtime, make_seats(config, runtime), incarnation)
    return runtime.born


@pytest.mark.parametrize(("incarnation", "life"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_proxys_incarnation_follows_from_its_workers(incarnation, life):
    first = life * (RESTARTS + 1)
    assert births(incarnation, 1) == [("proxy 0", life), ("worker 0", first), ("worker 1", first)]
    assert first >= incarnation


@pytest.mark.parametrize("proxies", [0, 1])
@pytest.mark.parametrize("replaced", [0, 2])
def test_a_resumed_run_starts_above_all_earlier_incarnations(build_graph, proxies, replaced):
    graph = build_graph(*ARGS, f"worker.proxies={proxies}")
    graph.pool.members[0].incarnation = replaced
    highest = (replaced + 1) * (RESTARTS + 1) - 1 if proxies else replaced  # each proxy's workers may be replaced, too
    assert graph.state()["incarnation"] == highest
    born = births(highest + 1, proxies)
    assert [incarnation for role, incarnation in born if role == "worker 0"] == [highest + 1]


def test_a_resumed_run_starts_above_removed_workers(build_graph):
    graph = build_graph(*ARGS, "worker.proxies=1")
    graph.pool.incarnation = 3  # of proxies that were removed
    assert graph.state()["incarnation"] == 3 * (RESTARTS + 1) - 1
