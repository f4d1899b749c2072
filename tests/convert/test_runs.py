"""Runs of a user's algorithm whose policy is a numpy program."""

from pathlib import Path

import pytest
from choices import some
from graphs import at, check_resumed_run, weights, workers

from drl_cli.convert.program import NumpyPolicy

SAC = ("env=Pendulum-v1", "algo=outside.my_sac")


def roles_with_torch(graph):
    """Return the roles on Ray, and the roles whose processes have loaded the library of torch."""
    graph.progress.usage.sample()
    pids = {use.role: use.pid for use in graph.progress.usage._present.values() if use.role not in ("main", "ray")}
    return {*pids}, {role for role, pid in pids.items() if "libtorch" in Path(f"/proc/{pid}/maps").read_text()}


@pytest.mark.ray
def test_only_the_trainer_imports_torch(run_graph):
    seen = []

    def started(graph):
        at(graph, 400, lambda: seen.append(roles_with_torch(graph)))

    args = ("mode=async", "worker.num=2", "manage.eval_period=100", "total_env_steps=600")
    graph = run_graph(*SAC, *args, on_ray=True, started=started)
    (seen,) = seen
    assert seen == ({"worker 0", "worker 1", "replay 0", "trainer", "manage", "parameter server"}, {"trainer"})
    assert len(graph.evaluations) > 2


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_all_roles_that_act_run_the_program(run_graph, mode):
    graph = run_graph(*SAC, f"mode={mode}", "worker.num=1", "total_env_steps=128", "manage.eval_period=64")
    (worker,) = workers(graph)
    assert isinstance(worker.policy, NumpyPolicy)
    assert isinstance(graph.manage.handle.role.evaluators[0].policy, NumpyPolicy)


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["single", "sync"], "sync"))
@pytest.mark.parametrize("algo", ["env=Pendulum-v1 algo=outside.my_sac", "env=CartPole-v1 algo=outside.my_a2c"])
def test_a_resumed_run_equals_an_uninterrupted_run(run_graph, mode, algo):
    check_resumed_run(run_graph, *algo.split(), f"mode={mode}", f"worker.num={1 if mode == 'single' else 2}")


@pytest.mark.ray
def test_sync_on_ray_equals_sync_in_process(run_graph):
    args = (*SAC, "mode=sync", "worker.num=2", "seed=5", "total_env_steps=256")
    assert weights(run_graph(*args)) == weights(run_graph(*args, on_ray=True))
