"""Runs of a user's algorithm whose policy is a numpy program."""

from pathlib import Path

import numpy as np
import pytest
from choices import some
from graphs import at, check_resumed_run, make_config, weights, workers
from outside import my_dqn, my_td3

from drl_cli.convert.program import NumpyPolicy, numpy_policy
from drl_cli.envs.make import read_spec
from drl_cli.runtime.roles.normalization import numpy_program
from drl_cli.types import random_obs

MEMORY = (
    *("env=drl_cli.envs.probes:Cue-v0", "algo=outside.my_memory", "network.memory=lstm", "network.memory_size=8"),
    *("replay=sequences", "replay.seq_len=8", "replay.burn_in=2", "replay.overlap=2"),
)
TD3 = ("env=Pendulum-v1", "algo=outside.my_td3")


def roles_with_torch(graph):
    """Return the roles on Ray, and the roles whose processes have loaded the library of torch."""
    graph.progress.usage.sample()
    pids = {use.role: use.key.pid for use in graph.progress.usage._present.values() if use.role not in ("main", "ray")}
    return {*pids}, {role for role, pid in pids.items() if "libtorch" in Path(f"/proc/{pid}/maps").read_text()}


@pytest.mark.ray
def test_only_the_trainer_imports_torch(run_graph):
    seen = []

    def started(graph):
        at(graph, 400, lambda: seen.append(roles_with_torch(graph)))

    args = ("mode=async", "worker.num=2", "manage.eval_period=100", "total_env_steps=600")
    graph = run_graph(*TD3, *args, on_ray=True, started=started)
    (seen,) = seen
    assert seen == ({"worker 0", "worker 1", "replay 0", "trainer", "manage", "parameter server"}, {"trainer"})
    assert len(graph.evaluations) > 2


@pytest.mark.parametrize(
    ("algo", "options"),
    [(TD3, "mode=single"), (TD3, "mode=sync"), (TD3, "mode=async worker.proxies=1"), (MEMORY, "mode=single")],
)
def test_all_roles_that_act_run_the_program(run_graph, algo, options):
    args = ("worker.num=1", "total_env_steps=128", "manage.eval_period=64")
    graph = run_graph(*algo, *args, *options.split())
    (worker,) = workers(graph)
    assert isinstance(worker.policy, NumpyPolicy)
    assert worker.policy.memory_size == (16 if algo is MEMORY else 0)
    assert isinstance(graph.manage.handle.role.evaluators[0].policy, NumpyPolicy)


class Made(my_td3.Policy):
    def __init__(self, *args):
        super().__init__(*args)


class Fails(my_td3.Policy):
    def choose(self, obs):
        raise ValueError


FRAMES = ("env=drl_cli.envs.probes:Frames-v0", "+env.kwargs.size=36", "algo=outside.my_a2c", "trainer.batch_size=32")
FORMS = [
    (TD3, my_td3.Policy, "numpy"),
    (MEMORY, None, "numpy"),
    (TD3, Made, "torch (it defines __init__)"),
    (TD3, Fails, "torch (ValueError)"),
    ((*FRAMES, "worker.envs=4"), None, "torch (aten.convolution is faster in torch)"),
    ((*FRAMES, "worker.envs=1"), None, "numpy"),
    (("env=Pendulum-v1", "algo=outside.my_sac"), None, "numpy"),
    (("env=Pendulum-v1", "algo=sac"), None, ""),
    (("env=Pendulum-v1", "algo=flashsac"), None, ""),
]


def test_exploration_is_an_input_of_the_program():
    config = make_config("env=drl_cli.envs.probes:Masked-v0", "algo=outside.my_dqn")
    spec = read_spec(config.env)
    program, form = numpy_program(config, spec)
    assert (form, [*program.exploration]) == ("numpy", ["epsilon"])
    policies = [
        kind(config.algo, config.network, spec, 0) for kind in (my_dqn.Policy, numpy_policy(my_dqn.Policy, program))
    ]
    vector = policies[0].params.vector(["q"])
    rng = np.random.default_rng(0)
    obs = dict(random_obs(spec.obs, 200, rng))
    obs["action_mask"] = np.ones((200, spec.action.size), np.bool_)
    shares = []
    for policy in policies:
        policy.load(vector)
        best = policy.greedy(obs)
        for epsilon in (None, 0.5, 0.0):  # first 1.0, the result of `explore`
            if epsilon is not None:
                policy.explore({"epsilon": epsilon})
            shares.append(float((policy.act(obs)["action"] == best).mean()))
    assert shares[:3] == shares[3:]
    assert shares[0] < shares[1] < shares[2] == 1.0


@pytest.mark.parametrize(("args", "policy", "form"), FORMS)
def test_the_header_tells_what_the_policy_runs_in(monkeypatch, args, policy, form):
    if policy is not None:
        monkeypatch.setattr(my_td3, "Policy", policy)
    config = make_config(*args)
    program, found = numpy_program(config, read_spec(config.env))
    assert found == form
    assert (program is not None) == (form == "numpy" and args[1] != "algo=outside.my_sac")  # which needs no program


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["single", "sync"], "sync"))
@pytest.mark.parametrize(
    "algo",
    [
        "env=Pendulum-v1 algo=outside.my_td3",
        "env=Pendulum-v1 algo=outside.my_sac",
        "env=CartPole-v1 algo=outside.my_a2c",
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_run(run_graph, mode, algo):
    check_resumed_run(run_graph, *algo.split(), f"mode={mode}", f"worker.num={1 if mode == 'single' else 2}")


@pytest.mark.ray
def test_sync_on_ray_equals_sync_in_process(run_graph):
    args = (*TD3, "mode=sync", "worker.num=2", "seed=5", "total_env_steps=256")
    assert weights(run_graph(*args)) == weights(run_graph(*args, on_ray=True))
