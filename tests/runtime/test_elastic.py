"""worker.num=auto on a cluster: workers come and go with the nodes during a run."""

import dataclasses
import logging
import time

import pytest
from counting import check_counter_rows
from graphs import COUNTER, on_collected

from drl_cli.runtime.place.handles import get

pytestmark = pytest.mark.ray
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
    rows = get(graph.replay.shards[0].call("contents"))
    assert len(rows["reward"]) == progress.inserts
    check_counter_rows(rows, 1, 0.99, progress.env_steps)


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_nodes_join_and_leave(build_graph, ray_cluster, caplog, capsys, times):
    graph = build_graph(COUNTER, *LONG, "worker.max_restarts=3", on_ray=True, change=elastic, elastic=True)
    band = graph.limiter.band
    script = Script(graph, ray_cluster, times)
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
        *(COUNTER, *LONG, "worker.max_restarts=3", f"total_env_steps={graph.progress.env_steps + 1000}"),
        **{"on_ray": True, "change": elastic, "elastic": True, "run": graph.folder},
    )
    assert [member.incarnation for member in resumed.pool.members] == [graph.pool.incarnation]
    resumed.run()
    resumed.finish()
    check(resumed)
