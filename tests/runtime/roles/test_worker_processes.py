import os
import re
import signal
from collections import Counter

import pytest
from counting import check_counter_rows
from graphs import COUNTER, on_collected
from handles import by_name

from drl_cli.errors import RoleLost
from drl_cli.runtime.place.handles import get

pytestmark = pytest.mark.ray


def process(graph, role):
    return int(re.findall(r"is process (\d+)", (graph.folder / "workers" / f"{role}.log").read_text())[-1])


def check_rows(graph, may_miss=0):
    rows = get(by_name(graph.replay.shards[0], "contents"))
    check_counter_rows(rows, 1, 0.95, graph.progress.env_steps, may_miss)


def test_four_kills_of_two_workers_and_every_row_is_there_once(build_graph, caplog):
    args = ("mode=async", "worker.num=2", "total_env_steps=1000000", "replay.capacity=200000")
    graph = build_graph(COUNTER, "algo.n_step=1", *args, on_ray=True)
    killed, blocks = [], Counter()

    def kill(header):
        blocks.update((block.worker, block.incarnation, block.number) for block in header.blocks)
        worker, incarnation = header.blocks[0].worker, header.blocks[0].incarnation
        if len(graph.pool.restart_seconds) == 4:
            graph.stop("signal")
        elif len(killed) == len(graph.pool.restart_seconds) and worker == len(killed) % 2:
            os.kill(process(graph, f"worker-{worker}"), signal.SIGKILL)
            killed.append((worker, incarnation))

    on_collected(graph, kill)
    graph.run()
    graph.finish()
    assert killed == [(worker, incarnation) for incarnation in range(2) for worker in range(2)]
    assert graph.progress.worker_restarts == 4
    assert ([member.incarnation for member in graph.pool.members], set(blocks.values())) == ([2, 2], {1})
    pattern = re.compile(r"worker [01] died \(its process ended unexpectedly\), restarted [12]/10 in \d+\.\d s")
    assert sum(bool(pattern.fullmatch(line)) for line in caplog.messages) == 4
    check_rows(graph)


@pytest.mark.parametrize(
    ("mode", "proxies"),
    [("async", 0), *(pytest.param(*other, marks=pytest.mark.exhaustive) for other in (("sync", 0), ("async", 1)))],
)
def test_a_stopped_worker_is_replaced_and_nobody_waits_longer(build_graph, caplog, mode, proxies):
    args = (f"mode={mode}", "worker.num=2", f"worker.proxies={proxies}", "worker.step_timeout_s=2")
    graph = build_graph(
        COUNTER, "algo.n_step=1", *args, "total_env_steps=1000000", "replay.capacity=500000", on_ray=True
    )
    stopped, during = [], Counter()

    def stop(header):
        has_begun = any(block.worker == 1 for block in header.blocks)
        if graph.progress.env_steps > 500 and has_begun and not stopped:
            stopped.append(process(graph, "worker-1"))
            os.kill(stopped[0], signal.SIGSTOP)
        elif stopped:
            during.update(block.worker for block in header.blocks if (block.worker, block.incarnation) != (1, 1))
        if any((block.worker, block.incarnation) == (1, 1) for block in header.blocks):
            graph.stop("signal")

    on_collected(graph, stop)
    graph.run()
    graph.finish()
    assert graph.progress.worker_restarts == 1
    pattern = r"worker 1 hung: no block for \d(\.\d+)? s \(worker.step_timeout_s\), restarted 1/10 in \d+\.\d s"
    assert sum(bool(re.fullmatch(pattern, line)) for line in caplog.messages) == 1
    assert during[1] <= 1  # what was on its way
    assert during[0] > (10 if mode == "async" else 0)
    check_rows(graph)


@pytest.mark.exhaustive
def test_a_stopped_trainer_is_named_although_workers_answer(build_graph):
    args = ("mode=async", "orchestrator.limiter=none", "orchestrator.stall_s=5", "total_env_steps=1000000")
    graph = build_graph(COUNTER, "algo.n_step=1", *args, "replay.capacity=1000000", on_ray=True)
    stopped, during = [], []

    def stop(header):
        if graph.progress.opt_steps > 50 and not stopped:
            stopped.append(process(graph, "trainer"))
            os.kill(stopped[0], signal.SIGSTOP)
        during.extend(stopped)

    on_collected(graph, stop)
    with pytest.raises(RoleLost, match=r"no answer for 5 s from: trainer$"):
        graph.run()
    os.kill(stopped[0], signal.SIGKILL)
    assert len(during) > 10
