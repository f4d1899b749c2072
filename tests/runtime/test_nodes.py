import dataclasses
import logging
import time
from collections import Counter

import numpy as np
import pytest
from counting import check_counter_rows
from graphs import COUNTER, at, on_collected, weights
from handles import by_name

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.place.handles import ObjectLost, get
from drl_cli.runtime.place.ray_runtime import RayRuntime

pytestmark = pytest.mark.ray
TWO = ("worker.num=4", "worker.proxies=2")


class Place:
    """A role that returns its node and the node of a role that it starts."""

    def here(self):
        import ray

        return ray.get_runtime_context().get_node_id()

    def below(self, runtime):
        self.child = runtime.spawn("child", Place)
        return get(by_name(self.child, "here"))

    def rows(self, count):
        return np.ones(count)


@pytest.fixture
def nodes(ray_cluster, second_node):
    return [ray_cluster.head_node.node_id, second_node.node_id]


@pytest.fixture
def remove_at(ray_cluster, second_node):
    """Remove the second node without warning; stop 1000 environment steps after the graph has noticed."""

    def arrange(graph, env_steps):
        members = len(graph.pool.members)

        def note(header):
            nonlocal members
            if graph.progress.env_steps >= env_steps and second_node in ray_cluster.worker_nodes:
                ray_cluster.remove_node(second_node, allow_graceful=False)
            if len(graph.pool.members) < members:
                members = len(graph.pool.members)
                config = dataclasses.replace(graph.config, total_env_steps=graph.progress.env_steps + 1000)
                graph.config = graph.admission.config = config

        on_collected(graph, note)

    return arrange


def test_a_role_runs_where_it_is_put_until_its_node_is_gone(ray_cluster, nodes, second_node, tmp_path):
    runtime = RayRuntime(str(tmp_path), nodes=nodes)
    here, there = roles = [runtime.spawn("place", Place, node=node) for node in nodes]
    for role, node in zip(roles, nodes, strict=True):
        assert get(by_name(role, "here")) == get(by_name(role, "below", runtime)) == node
    assert get(by_name(runtime.spawn("place", Place), "here")) == nodes[0]  # not said where: beside the driver
    rows = by_name(there, "rows", 10**6)
    assert get(by_name(there, "here")) == nodes[1]  # by now the rows are there, and only there
    ray_cluster.remove_node(second_node, allow_graceful=False)
    with pytest.raises(ObjectLost):
        get(by_name(here, "rows", rows))
    assert get(by_name(here, "here")) == nodes[0]
    with pytest.raises(NodeGone, match=rf"node \S+ \({nodes[1][:6]}\) is gone"):
        runtime.spawn("place", Place, node=nodes[1])


def test_sac_on_two_nodes_sends_each_node_each_version_once(build_graph, nodes):
    graph = build_graph("env=Pendulum-v1", "mode=async", *TWO, "total_env_steps=1500", on_ray=True, nodes=nodes)
    sent = Counter()

    def note(route, count, detail):
        if route == 7:
            sent[detail["member"], detail["version"]] += count

    graph.progress.trace.observe = note
    graph.run()
    graph.finish()
    assert graph.progress.env_steps >= 1500
    assert graph.progress.samples == graph.progress.opt_steps > 100
    assert ({member for member, _ in sent}, set(sent.values())) == ({0, 1}, {1})
    assert max(version for _, version in sent) > 3
    counts = graph.progress.trace.counts
    assert counts[7] == sent.total()
    assert counts[8] <= 2 * counts[7]


@pytest.mark.exhaustive
def test_sync_on_two_nodes_equals_sync_on_one(run_graph, nodes):
    args = (COUNTER, "algo.n_step=1", "mode=sync", "worker.num=4", "seed=5")
    one = run_graph(*args, on_ray=True)
    proxied = run_graph(*args, "worker.proxies=2", on_ray=True, nodes=nodes)
    without = run_graph(*args, on_ray=True, nodes=nodes)
    assert weights(one) == weights(proxied) == weights(without)
    assert proxied.progress.trace.counts[7] == 2 * (proxied.progress.trace.counts[8] // 4) > 0


@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.exhaustive)])
def test_a_lost_node_is_reported_and_the_run_continues(build_graph, nodes, remove_at, caplog, mode):
    args = (
        COUNTER,
        "algo.n_step=1",
        f"mode={mode}",
        *TWO,
        "worker.max_restarts=0",
        "total_env_steps=1e6",
        "replay.capacity=1e5",
    )
    graph = build_graph(*args, on_ray=True, nodes=nodes)
    remove_at(graph, 500)
    graph.run()
    graph.finish()
    (said,) = [record for record in caplog.records if "is gone" in record.message]
    assert said.levelno == logging.WARNING
    assert nodes[1][:6] in said.message
    assert "going on with 2 of 4 workers" in said.message
    progress = graph.progress
    assert [member.index for member in graph.pool.members] == [0]
    assert progress.env_steps >= graph.config.total_env_steps
    assert graph.config.total_env_steps < 1e5
    assert progress.worker_restarts == 0
    assert progress.inserts == progress.env_steps == graph.limiter.inserts == graph.limiter.landed
    assert progress.samples == progress.opt_steps
    assert abs(graph.limiter.target - progress.samples) <= graph.limiter.band / 2
    (shard,) = graph.replay.shards
    rows = get(by_name(shard, "contents"))
    assert len(rows["reward"]) == progress.inserts
    check_counter_rows(rows, 1, 0.95, progress.env_steps)


@pytest.mark.exhaustive
def test_the_last_node_with_workers_ends_the_run(build_graph, nodes, remove_at):
    graph = build_graph(
        COUNTER, "algo.n_step=1", "mode=async", "worker.num=1", "total_env_steps=100000", on_ray=True, nodes=nodes[1:]
    )
    remove_at(graph, 300)
    with pytest.raises(RoleLost, match=rf"{nodes[1][:6]}\) is gone, and with it the last worker"):
        graph.run()


@pytest.mark.exhaustive
def test_a_proxy_that_dies_on_a_live_node_is_restarted_there(build_graph, nodes, caplog):
    args = (COUNTER, "algo.n_step=1", "mode=async", *TWO, "total_env_steps=6000", "replay.capacity=8000")
    graph = build_graph(*args, on_ray=True, nodes=nodes)
    at(graph, 1000, lambda: graph.pool.members[1].handle.kill())
    graph.run()
    assert graph.progress.worker_restarts == 1
    assert "proxy 1 died" in caplog.text
    assert [member.incarnation for member in graph.pool.members] == [0, 1]
    check_counter_rows(get(by_name(graph.replay.shards[0], "contents")), 1, 0.95, graph.progress.env_steps)


LONG = ("total_env_steps=1e6", "replay.capacity=1e5", "mode=async")
WAIT_S = 90.0  # on a busy machine, the processes of a node take long to start


def elastic(config, num=1, most=3):
    """The config as `fill` makes it of worker.num=auto and worker.max_num for a cluster of one node."""
    return dataclasses.replace(config, worker=dataclasses.replace(config.worker, num=num, proxies=1, max_num=most))


def stop_after(graph, env_steps):
    config = dataclasses.replace(graph.config, total_env_steps=graph.progress.env_steps + env_steps)
    graph.config = graph.admission.config = config


class Script:
    """Adds and removes a node of the cluster `times` times, then ends the run."""

    def __init__(self, graph, cluster, times):
        self.graph, self.cluster, self.times = graph, cluster, times
        self.node, self.counts, self.blocks, self.until = None, [], [], time.monotonic() + times * WAIT_S
        on_collected(graph, self.react)

    def react(self, header):
        assert time.monotonic() < self.until
        num, workers = self.graph.pool.num_workers, {block.worker for block in header.blocks}
        if not self.counts or self.counts[-1] != num:
            self.counts.append(num)
        if self.node is None and num == 1 and self.times and self.graph.progress.opt_steps:
            self.node = self.cluster.add_node(num_cpus=2, object_store_memory=80 * 2**20)
        elif self.node is not None and workers & {1, 2}:  # the node has given blocks
            if self.node in self.cluster.worker_nodes:
                self.blocks.append({(block.worker, block.incarnation) for block in header.blocks})
                self.cluster.remove_node(self.node, allow_graceful=False)
                self.times -= 1
        elif self.node is not None and num == 1 and self.node not in self.cluster.worker_nodes:
            self.node = None
            if not self.times:
                stop_after(self.graph, 1000)


def check(graph):
    progress, limiter = graph.progress, graph.limiter
    assert progress.inserts == progress.env_steps == limiter.inserts == limiter.landed
    assert progress.samples == progress.opt_steps
    assert abs(limiter.target - progress.samples) <= limiter.band / 2 + 1e-6
    rows = get(by_name(graph.replay.shards[0], "contents"))
    assert len(rows["reward"]) == progress.inserts
    check_counter_rows(rows, 1, 0.95, progress.env_steps)


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_nodes_join_and_leave(build_graph, ray_cluster, caplog, capsys, times):
    graph = build_graph(
        COUNTER, "algo.n_step=1", *LONG, "worker.max_restarts=3", on_ray=True, change=elastic, elastic=True
    )
    band, script = graph.limiter.band, Script(graph, ray_cluster, times)
    graph.run()
    graph.finish()
    assert script.counts == [1, *[3, 1] * times]
    assert capsys.readouterr().err.count("has joined: going on with 3 workers") == times
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    lost = [line for line in warnings if "lost on its way" not in line]
    assert len(lost) == times
    assert all("is gone: going on with 1 of 3 workers" in line for line in lost)
    lives = [life for block in script.blocks for life in block]
    assert len(lives) == len(set(lives))  # a worker of a node that joins again has new seeds
    assert graph.limiter.band == band
    check(graph)
    resumed = build_graph(
        *(
            COUNTER,
            "algo.n_step=1",
            *LONG,
            "worker.max_restarts=3",
            f"total_env_steps={graph.progress.env_steps + 1000}",
        ),
        **{"on_ray": True, "change": elastic, "elastic": True, "run": graph.folder},
    )
    assert [member.incarnation for member in resumed.pool.members] == [graph.pool.incarnation]
    resumed.run()
    resumed.finish()
    check(resumed)
