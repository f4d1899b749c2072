import dataclasses

import pytest
from clocks import Clock
from graphs import TINY, make_config

from drl_cli.errors import NodeGone
from drl_cli.runtime.edges.pool import WorkerPool
from drl_cli.runtime.factories import adapt, make_limiter
from drl_cli.runtime.orchestrator import node_watch
from drl_cli.runtime.orchestrator.node_watch import NodeWatch, most_per_node
from drl_cli.settings.build import build
from drl_cli.settings.fill import fill
from drl_cli.utils.machine import Node

HERE, BIG = Node("here", "10.0.0.1", 3.0, is_here=True), Node("big", "10.0.0.2", 4.0)


class Watched:
    """A NodeWatch whose clock each `look` moves on, with the births (index, workers, node, incarnation)."""

    def __init__(self, monkeypatch, *overrides, nodes=(HERE,), incarnation=0):
        from composing import compose_plain

        words = ("worker.num=auto", "mode=async", "ray.address=auto", *overrides)
        self.config = fill(build(compose_plain(*TINY, *words)), nodes)
        self.nodes, self.births, self.seats, self.adapted = nodes, [], {}, []
        self.forgotten = []
        self.pool = WorkerPool(
            "proxy", (), self.spawn, 3, incarnation=incarnation, node_of=lambda index: self.seats[index].node
        )
        self.clock = Clock(now=0.0).install(monkeypatch)
        self.watch = NodeWatch(
            self.config, self.pool, self.seats, lambda: self.nodes, self.adapted.append, self.forgotten.extend
        )
        self.look(*nodes)

    def spawn(self, index, incarnation):
        if self.seats[index].node == "gone":
            raise NodeGone("node 10.0.0.9 (gone) is gone")
        self.births.append((index, tuple(self.seats[index].workers), self.seats[index].node, incarnation))

    def look(self, *nodes):
        self.nodes = nodes
        self.clock.now += node_watch.PERIOD_S
        self.watch.look()

    def leave(self, index):
        (member,) = [member for member in self.pool.members if member.index == index]
        self.pool._remove(member, NodeGone("gone"))


def test_each_node_gets_one_worker_per_processor_that_no_trainer_uses(monkeypatch, capsys):
    watched = Watched(monkeypatch, nodes=(BIG, HERE))
    assert watched.births == [(0, (0, 1), "here", 0), (1, (2, 3, 4, 5), "big", 0)]
    assert (watched.config.num_workers, watched.adapted) == (6, [[2, 4]])
    assert capsys.readouterr().err == ""  # only later nodes are told


def test_a_node_that_joins_gets_free_indices_and_higher_incarnations(monkeypatch, capsys):
    watched = Watched(monkeypatch, incarnation=5)
    watched.look(HERE, BIG)
    assert capsys.readouterr().err == "node 10.0.0.2 (big) has joined: going on with 6 workers\n"
    watched.look(HERE, BIG)
    watched.look(HERE, BIG, Node("third", "10.0.0.3", 1.0))
    watched.leave(1)
    watched.look(HERE, Node("third", "10.0.0.3", 1.0))
    watched.look(HERE, Node("third", "10.0.0.3", 1.0), Node("big again", "10.0.0.2", 5.0))
    assert watched.births == [
        *[(0, (0, 1), "here", 5), (1, (2, 3, 4, 5), "big", 5), (2, (6,), "third", 5)],
        (1, (2, 3, 4, 5, 7), "big again", 6),
    ]
    assert watched.adapted == [[2], [2, 4], [2, 4, 1], [2, 1], [2, 1, 5]]
    assert watched.forgotten == ["proxy 1", "worker 2", "worker 3", "worker 4", "worker 5"]


def test_a_node_that_left_after_its_offer_is_no_error(monkeypatch, capsys):
    watched = Watched(monkeypatch)
    watched.look(HERE, Node("gone", "10.0.0.9", 2.0))
    watched.look(HERE, BIG)
    assert [birth[:3] for birth in watched.births] == [(0, (0, 1), "here"), (1, (2, 3, 4, 5), "big")]
    assert capsys.readouterr().err.count("joined") == 1


def test_nodes_are_looked_at_once_in_a_period(monkeypatch):
    watched = Watched(monkeypatch)
    watched.nodes, watched.clock.now = (HERE, BIG), watched.clock.now + node_watch.PERIOD_S / 2
    watched.watch.look()
    assert len(watched.births) == 1


@pytest.mark.parametrize(("bound", "shares"), [(1, [1]), (2, [2]), (4, [2, 2]), (5, [2, 3]), (64, [2, 4])])
def test_the_bound_limits_all_workers(monkeypatch, bound, shares):
    watched = Watched(monkeypatch, f"worker.max_num={bound}")
    assert watched.config.num_workers == shares[0]
    watched.look(HERE, BIG)
    assert [member.share for member in watched.pool.members] == shares
    if len(shares) > 1:
        watched.leave(1)
    watched.look(HERE, Node("third", "10.0.0.3", 9.0))
    assert watched.pool.num_workers == min(bound, 11)


def test_a_block_of_a_node_fits_into_the_table(monkeypatch):
    watched = Watched(monkeypatch, "replay.capacity=130", "orchestrator.min_inserts=32")  # blocks of 32 transitions
    watched.look(HERE, BIG)
    assert [member.share for member in watched.pool.members] == [2, 3]


def test_a_run_that_keeps_its_number_of_workers_ignores_nodes(monkeypatch):
    watched = Watched(monkeypatch, nodes=(HERE, Node("third", "10.0.0.3", 1.0)))
    watched.watch.config = dataclasses.replace(
        watched.config, worker=dataclasses.replace(watched.config.worker, max_num=None)
    )
    watched.leave(1)  # so an index is free
    watched.look(HERE, BIG)
    assert (len(watched.births), watched.adapted) == (2, [[2, 1]])


def test_the_band_follows_the_workers():
    config = make_config(*TINY, "mode=async", "worker.num=2")
    limiter = make_limiter(config)
    ratio, rows = config.orchestrator.sample_insert_ratio, config.rows_per_collect
    before = limiter.band
    adapt(limiter, config, [2, 4])
    assert limiter.band - before == pytest.approx(2 * ratio * 4 * rows)
    adapt(limiter, config, [2])
    assert limiter.band == before


def test_a_typed_band_stays_if_the_largest_proxy_fits():
    config = make_config(*TINY, "mode=async", "worker.num=2", "orchestrator.band=300")
    limiter = make_limiter(config)
    adapt(limiter, config, [2, 4])
    assert limiter.band == 300
    adapt(limiter, config, [100])
    ratio, rows = config.orchestrator.sample_insert_ratio, config.rows_per_collect
    assert limiter.band == 100 * ratio * rows + config.updates_per_call


def test_an_on_policy_queue_lets_all_workers_collect(monkeypatch):
    watched = Watched(monkeypatch, "algo=ppo", "algo.minibatch_size=8", "replay.max_staleness=auto")
    config, limiter = watched.config, make_limiter(watched.config)
    batches = {num: num * config.rows_per_collect // config.trainer.batch_size for num in (1, 2, 6)}
    assert batches[6] == 3 * batches[2] > 2
    for num in (2, 6, 2, 1):
        adapt(limiter, config, [num])
        assert limiter.ahead == max(2, batches[num]) <= config.replay.bound
        assert limiter.may_collect(num * config.rows_per_collect)


def test_the_block_of_a_node_fits_into_its_shard():
    words = (
        "worker.num=1",
        "worker.envs=1",
        "worker.block_rows=10",
        "algo.n_step=1",
        "mode=async",
        "replay.capacity=1000",
    )
    one, two = (most_per_node(make_config("env=CartPole-v1", *words, f"replay.shards={num}")) for num in (1, 2))
    assert (one, two) == (99, 49)
