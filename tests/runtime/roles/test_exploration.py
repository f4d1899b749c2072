"""Exploration schedules travel with the parameters: every worker explores by the value at its version."""

import pytest

from drl_cli.optim.schedules import linear

DQN = (
    "env=drl_cli.envs.probes:Choose-v0",
    "algo=dqn",
    "worker.num=2",
    "worker.random_steps=128",
    "algo.epsilon_steps=300",
    "algo.epsilon_end=0.2",
    "orchestrator.sample_load_ratio=1",
)


def watch(worker, seen):
    """Note what each collect call of a worker was given, and what its policy explored by."""
    collect = worker.collect

    def collect_it(params_header, *params):
        result = collect(params_header, *params)
        seen.append((worker.index, params_header, worker.policy.epsilon))
        return result

    worker.collect = collect_it


@pytest.mark.parametrize("mode", ["single", "sync", "async"])
@pytest.mark.parametrize("proxies", [0, 1])
def test_workers_explore_by_the_value_of_their_version(build_graph, mode, proxies):
    graph = build_graph(*DQN, f"mode={mode}", f"worker.proxies={proxies}")
    members = graph.pool.members
    if proxies:
        members = [worker for member in members for worker in member.handle.role.pool.members]
    seen = []
    for member in members:
        watch(member.handle.role, seen)
    graph.run()
    for _, params_header, epsilon in seen:
        assert epsilon == linear(params_header.env_steps, 1.0, 0.2, 300) == params_header.exploration["epsilon"]
        assert params_header.env_steps % graph.collector.rows == 0
    for index in (0, 1):
        mine = [(params_header, epsilon) for worker, params_header, epsilon in seen if worker == index]
        values = [epsilon for _, epsilon in mine]
        assert values == sorted(values, reverse=True)
        assert len(set(values)) > 3
        assert any(params_header.random_actions for params_header, _ in mine)
    assert min(epsilon for *_, epsilon in seen) == 0.2


def test_the_value_is_reported(build_graph):
    graph = build_graph(*DQN, "mode=sync")
    reports = []
    graph.manage.report = lambda scalars, env_steps: reports.append(scalars)
    graph.run()
    graph.finish()
    assert reports[-1]["rollout/epsilon"] == 0.2


def test_an_algorithm_without_schedules_sends_none(build_graph):
    graph = build_graph("env=drl_cli.envs.probes:Counter-v0", "mode=sync")
    graph.run()
    assert graph.learning.params_header.opt_steps > 0
    assert graph.learning.params_header.exploration == {}
