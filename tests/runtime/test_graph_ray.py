import time

import numpy as np
import pytest
from counting import check_counter_rows
from graphs import COUNTER, at, on_collected, weights
from handles import by_name

from drl_cli.errors import EnvironmentFailed, RoleLost, UserCodeFailed
from drl_cli.runtime.place.handles import get

pytestmark = pytest.mark.ray


def test_sync_on_ray_equals_sync_in_process(run_graph):
    args = (COUNTER, "mode=sync", "worker.num=2", "seed=5")
    here, there = run_graph(*args), run_graph(*args, on_ray=True)
    assert weights(here) == weights(there)


@pytest.mark.parametrize("proxies", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_async_rows_arrive_once_and_in_order(run_graph, proxies):
    graph = run_graph(COUNTER, "mode=async", "worker.num=2", "algo.n_step=3", f"worker.proxies={proxies}", on_ray=True)
    rows = get(by_name(graph.replay.shards[0], "contents"))
    check_counter_rows(rows, 3, 0.95, graph.progress.env_steps)
    most_open = (3 - 1) * 2 * 4  # rows of a step whose n steps are not over, for which a trainer may be ahead
    paid = 0.25 * (graph.progress.inserts - 64)
    assert int(paid) <= graph.progress.opt_steps <= paid + 0.25 * most_open
    assert graph.progress.samples == graph.progress.opt_steps


@pytest.mark.exhaustive
def test_trainers_that_wait_for_workers_end_with_what_was_paid_for(run_graph):
    args = ("env=drl_cli.envs.probes:Sleeper-v0", "mode=async", "worker.num=2", "worker.envs=1", "total_env_steps=500")
    graph = run_graph(*args, "+env.kwargs.step_s=0.005", on_ray=True)
    assert graph.progress.opt_steps == (graph.progress.env_steps - 64) // 4


@pytest.mark.exhaustive
def test_a_slow_worker_delays_nobody(build_graph, tmp_path):
    args = ("env=drl_cli.envs.probes:Sleeper-v0", "mode=async", "worker.num=4", "worker.envs=1", "worker.block_rows=20")
    args += ("orchestrator.limiter=none", "total_env_steps=4000", "+env.kwargs.step_s=0.005")
    args += ("orchestrator.min_inserts=100000", "replay.capacity=100000", "manage.max_episode_steps=1")

    def rate(*more):  # env steps per second between the 1000th and the 3000th
        graph = build_graph(*args, *more, on_ray=True)
        times = []

        def note(header):
            if 1000 <= graph.progress.env_steps <= 3000:
                times.append((time.monotonic(), graph.progress.env_steps))

        on_collected(graph, note)
        graph.run()
        return (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])

    even, slow = rate(), rate(f"+env.kwargs.slow_file={tmp_path}/slow")
    assert slow >= 0.8 * 3 / 4 * even


def test_a_killed_manage_does_not_stop_training(build_graph, caplog):
    graph = build_graph(COUNTER, "mode=async", "manage.eval_period=200", "total_env_steps=1500", on_ray=True)
    at(graph, 500, lambda: graph.manage.handle.kill())
    graph.run()
    graph.finish()
    assert graph.progress.env_steps >= 1500
    assert graph.manage.restarts == 1
    assert "manage died" in caplog.text
    assert graph.progress.last.params_header.version == graph.learning.params_header.version


@pytest.mark.exhaustive
def test_a_killed_replay_ends_the_run_with_its_name(build_graph):
    graph = build_graph(COUNTER, "mode=async", "total_env_steps=100000", on_ray=True)
    at(graph, 500, lambda: graph.replay.shards[0].kill())
    started = time.monotonic()
    with pytest.raises(RoleLost, match=r"(trainer|replay( 0)?) died"):
        graph.run()
    assert time.monotonic() - started < 60


def test_an_environment_that_raises_in_another_process(build_graph):
    args = ("env=drl_cli.envs.probes:Faulty-v0", "+env.kwargs.at=60", "worker.max_restarts=0")
    graph = build_graph(*args, "mode=async", on_ray=True)
    with pytest.raises(EnvironmentFailed, match="probe crashed at step 60"):
        graph.run()


@pytest.mark.exhaustive
def test_a_torso_that_raises_in_another_process(build_graph):
    graph = build_graph("network=late_parts:Torso", "mode=async", on_ray=True)
    with pytest.raises(UserCodeFailed, match=r"^late_parts raised Lost: no idea \(.*late_parts\.py:\d+\)$"):
        graph.run()


@pytest.mark.exhaustive
def test_normalisation_in_other_processes(run_graph):
    args = (COUNTER, "worker.num=2", "seed=5", "env.normalize_obs=true", "env.normalize_reward=true")
    here, there = run_graph(*args, "mode=sync"), run_graph(*args, "mode=sync", on_ray=True)
    assert weights(here) == weights(there)
    graph = run_graph(*args, "mode=async", "replay.shards=2", "worker.fetch=2", on_ray=True)
    count, *_ = get(graph.learning.params)[-1 - 2 * 4 :]
    assert 64 <= count <= graph.progress.inserts
    shards = [get(by_name(shard, "contents")) for shard in graph.replay.shards]
    rows = {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}
    rows = {name: column[np.lexsort(rows["obs"].T[::-1])] for name, column in rows.items()}
    check_counter_rows(rows, 1, 0.95, graph.progress.env_steps)
