import dataclasses
import logging
from collections import Counter

import numpy as np
import pytest
from counting import check_counter_rows
from graphs import COUNTER, at, on_collected, weights

from drl_cli.errors import NodeGone, RoleLost
from drl_cli.runtime.place.handles import ObjectLost, RayRuntime, get

pytestmark = pytest.mark.ray
TWO = ("worker.num=4", "worker.proxies=2")


class Place:
    """A role that returns its node and the node of a role that it starts."""

    def here(self):
        import ray

        return ray.get_runtime_context().get_node_id()

    def below(self, runtime):
        self.child = runtime.spawn("child", Place)
        return get(self.child.call("here"))

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


def test_a_role_runs_where_it_is_put_and_what_it_spawns_beside_it(nodes, tmp_path):
    runtime = RayRuntime(str(tmp_path), nodes=nodes)
    for node in nodes:
        role = runtime.spawn("place", Place, node=node)
        assert get(role.call("here")) == get(role.call("below", runtime)) == node
    assert get(runtime.spawn("place", Place).call("here")) == nodes[0]  # not said where: beside the driver


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
    assert {member for member, _ in sent} == {0, 1}
    assert set(sent.values()) == {1}
    assert max(version for _, version in sent) > 3
    counts = graph.progress.trace.counts
    assert counts[7] == sent.total()
    assert counts[8] <= 2 * counts[7]


@pytest.mark.exhaustive
def test_sync_on_two_nodes_equals_sync_on_one(run_graph, nodes):
    args = (COUNTER, "mode=sync", "worker.num=4", "seed=5")
    one = run_graph(*args, on_ray=True)
    proxied = run_graph(*args, "worker.proxies=2", on_ray=True, nodes=nodes)
    without = run_graph(*args, on_ray=True, nodes=nodes)
    assert weights(one) == weights(proxied) == weights(without)
    assert proxied.progress.trace.counts[7] == 2 * (proxied.progress.trace.counts[8] // 4) > 0


@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.exhaustive)])
def test_a_lost_node_is_reported_and_the_run_continues(build_graph, nodes, remove_at, caplog, mode):
    args = (COUNTER, f"mode={mode}", *TWO, "worker.max_restarts=0", "total_env_steps=1e6", "replay.capacity=1e5")
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
    rows = get(shard.call("contents"))
    assert len(rows["reward"]) == progress.inserts
    check_counter_rows(rows, 1, 0.99, progress.env_steps)


@pytest.mark.exhaustive
def test_the_last_node_with_workers_ends_the_run(build_graph, nodes, remove_at):
    graph = build_graph(COUNTER, "mode=async", "worker.num=1", "total_env_steps=100000", on_ray=True, nodes=nodes[1:])
    remove_at(graph, 300)
    with pytest.raises(RoleLost, match=rf"{nodes[1][:6]}\) is gone, and with it the last worker"):
        graph.run()


@pytest.mark.exhaustive
def test_a_proxy_that_dies_on_a_live_node_is_restarted_there(build_graph, nodes, caplog):
    args = (COUNTER, "mode=async", *TWO, "total_env_steps=6000", "replay.capacity=8000")
    graph = build_graph(*args, on_ray=True, nodes=nodes)
    at(graph, 1000, lambda: graph.pool.members[1].handle.kill())
    graph.run()
    assert graph.progress.worker_restarts == 1
    assert "proxy 1 died" in caplog.text
    assert [member.incarnation for member in graph.pool.members] == [0, 1]
    check_counter_rows(get(graph.replay.shards[0].call("contents")), 1, 0.99, graph.progress.env_steps)


def test_a_block_lost_with_its_node_fails_its_call(ray_cluster, nodes, second_node, tmp_path):
    runtime = RayRuntime(str(tmp_path), nodes=nodes)
    there, here = (runtime.spawn("place", Place, node=node) for node in reversed(nodes))
    rows = there.call("rows", 10**6)
    assert get(there.call("here")) == nodes[1]  # by now the rows are there, and only there
    ray_cluster.remove_node(second_node, allow_graceful=False)
    with pytest.raises(ObjectLost):
        get(here.call("rows", rows))
    assert get(here.call("here")) == nodes[0]
    with pytest.raises(NodeGone, match=rf"node \S+ \({nodes[1][:6]}\) is gone"):
        runtime.spawn("place", Place, node=nodes[1])
