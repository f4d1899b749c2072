import numpy as np
import pytest
import torch
from graphs import make_config
from outside import torch_policies
from policies import SMALL, observations

from drl_cli.deploy import policy as module
from drl_cli.deploy import standalone
from drl_cli.deploy.export import export
from drl_cli.deploy.formats import not_exported
from drl_cli.deploy.graph import Graph
from drl_cli.deploy.policy import TrainedPolicy
from drl_cli.envs.make import read_spec
from drl_cli.errors import UsageError


@pytest.fixture
def make(tmp_path, monkeypatch):
    def make_it(kind, env="drl_cli.envs.probes:Choose-v0"):
        config = make_config(*SMALL, f"env={env}", "algo=dqn")
        spec = read_spec(config.env)
        monkeypatch.setattr(module, "make_policy", lambda *args: kind(config.algo, config.network, spec, 0))
        own = kind(config.algo, config.network, spec, 0)
        size = len(own.params.vector(["net"])) if hasattr(own.params, "vector") else sum(map(np.prod, own.shapes))
        params = np.random.default_rng(0).standard_normal(int(size)).astype(np.float32)
        folder = tmp_path / "checkpoints" / "step_1"
        return TrainedPolicy(config, spec, params, folder, {"env_steps": 1, "opt_steps": 1})

    return make_it


@pytest.mark.parametrize("env", ["drl_cli.envs.probes:Choose-v0", "everything:Stacked-v0"])
def test_the_graph_of_a_torch_policy(make, env):
    trained = make(torch_policies.Chooses, env)
    obs, _ = observations(trained, 30)
    graph = Graph(trained.fresh(), trained.spec, trained.units).eval()
    with torch.no_grad():
        (action,) = graph(torch.from_numpy(obs))
    actions = trained(obs)
    assert np.array_equal(action.numpy(), actions)
    assert len(np.unique(actions)) > 1


@pytest.mark.slow
def test_a_torch_policy_is_exported_by_torch_and_onnx(make):
    trained = make(torch_policies.Chooses)
    for format in ("torch", "onnx"):
        _, parity = export(trained, format, 20)
        assert parity.largest_difference == 0
    with pytest.raises(UsageError, match=r"torch.export can't trace its modules .*x\.shape\[0\]"):
        export(make(torch_policies.Fixed), "torch", 20)


def test_a_policy_with_a_search_exports_its_prior(make):
    trained = make(torch_policies.Searches)
    obs, _ = observations(trained, 30)
    searched = trained(obs)
    prior = make(torch_policies.Chooses)(obs)
    assert not (searched == prior).any()
    folder, parity = export(trained, "torch", 20)
    assert parity.largest_difference == 0
    assert np.array_equal(standalone.Policy(folder)(obs), prior)
    network = trained.config.network
    assert "the search of outside.torch_policies.Searches is not exported" in not_exported(
        torch_policies.Searches, network
    )
    assert not_exported(torch_policies.Chooses, network) is None


@pytest.mark.parametrize(
    ("kind", "format", "words"),
    [
        (torch_policies.Chooses, "numpy", "Chooses has modules that format=numpy can't export; say format=onnx or"),
        (torch_policies.Remembers, "torch", r"Remembers has a memory .* drl_cli.load"),
        *((torch_policies.Own, form, r"Own has its own greedy\(\).* drl_cli.load") for form in ("numpy", "torch")),
    ],
)
def test_a_failed_export_leaves_nothing(make, kind, format, words, tmp_path):
    trained = make(kind)
    with pytest.raises(UsageError, match=words):
        export(trained, format, 20)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert trained(np.eye(3)[1]) in (3, 4, 5)


def test_a_policy_with_its_own_memory_gets_the_last_action_and_reward(make):
    kind = type("Memory", (torch_policies.Memory,), {"params": None, "shapes": [(1,)], "load": lambda *args: None})
    kind.__abstractmethods__ = frozenset()
    trained = make(kind)
    obs = np.zeros((2, 3))
    assert trained(obs).tolist() == [3, 3]  # choices start at 3
    assert trained(obs).tolist() == [4, 4]
    assert trained(obs, reward=[0.0, 2.0]).tolist() == [3, 5]  # 2 steps, action 1, and reward: 3 and 5 of 3
    trained.reset([False, True])
    # 3 steps, action 0 and reward 1 are 4 of 3; after a reset 3
    assert trained(obs, reward=[1.0, 1.0]).tolist() == [4, 3]
    trained.reset([True, False])
    trained.reset([False, True])
    assert trained(obs, reward=[2.0, 2.0]).tolist() == [3, 3]
