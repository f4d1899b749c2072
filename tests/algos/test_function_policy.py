"""Algorithms whose file has the functions `networks` and `policy`: what the base class makes of them."""

import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learners import ACTIONS, CPU, IMAGE, TREE, VECTOR, mapped
from outside import my_a2c, my_memory, my_sac, my_td3

import drl_cli.api as drl
from drl_cli.algos.base import Counts
from drl_cli.algos.function_policy import FunctionPolicy, acting_parts
from drl_cli.algos.off_policy import crossq, sac, td3
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder
from drl_cli.optim.rules import FusedAdam
from drl_cli.types import Column, EnvSpec, PreviousStep, random_obs
from drl_cli.utils.deferred import Module, NotInNumpy, building

NETWORK = NetworkConfig((16, 12), "elu", "uniform", layer_norm=True)
SAC = sac.Config(
    name="sac", gamma=0.9, n_step=1, lr=1e-3, alpha_lr=1e-3, tau=0.1, initial_alpha=1.0, target_entropy=None,
    actor_period=1, noise_kind="gaussian",
)  # fmt: skip
OTHERS = {my_sac: my_sac.Config(name="my_sac"), my_a2c: my_a2c.Config(name="my_a2c"), sac: SAC}
KINDS = {my_sac: "box", my_a2c: "discrete", sac: "box", my_td3: "box"}


class Critic(Module):
    """A module of a file that was read before torch was imported."""


def spec_of(module, obs=VECTOR):
    return EnvSpec("x", obs, ACTIONS[KINDS[module]])


def pair(module, obs=VECTOR, network=NETWORK):
    """Return an algorithm and its policy."""
    config, spec = OTHERS[module], spec_of(module, obs)
    algorithm = module.Algorithm(config, network, spec, 1, CPU)
    policy = module.Policy(config, network, spec, 2)
    policy.load(algorithm.policy_params())
    return algorithm, policy


NO_IMAGE = {"arm.angles": Column((3,), "float32"), "gear": Column((), "int32", (5,))}


@pytest.mark.parametrize("obs", [VECTOR, NO_IMAGE], ids=["vector", "dict"])
@pytest.mark.parametrize("module", OTHERS)
def test_the_numpy_form_acts_as_the_networks_of_the_trainer(module, obs):
    algorithm, policy = pair(module, obs)
    assert policy.acting is not None
    seen = random_obs(spec_of(module, obs).obs, 6, np.random.default_rng(0))
    expected = module.policy(algorithm.nets, mapped(seen, torch.from_numpy), {})
    np.testing.assert_allclose(policy.greedy(seen), expected.mode.detach(), rtol=1e-4, atol=1e-5)
    rng = np.random.default_rng(2)
    np.testing.assert_allclose(policy.act(seen)["action"], expected.sample(rng).detach(), rtol=1e-4, atol=1e-5)


ACTS = """
import sys, numpy as np
sys.path[:0] = {path}
from outside import {name}
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import Encoder
from drl_cli.types import ActionSpec, Column, EnvSpec
spec = EnvSpec("x", Column((3,), "float32"), ActionSpec("{kind}", 2, "x"))
policy = {name}.Policy({name}.Config(name="x"), NetworkConfig((4,), "relu", "uniform"), spec, 0)
policy.load(np.zeros({size}, np.float32))
assert policy.act(np.zeros((2, 3), np.float32))["action"].shape[0] == 2
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(("name", "kind", "size"), [("my_sac", "box", 36), ("my_a2c", "discrete", 26)])
def test_a_policy_of_our_networks_acts_without_torch(name, kind, size):
    code = ACTS.format(path=[p for p in sys.path if p], name=name, kind=kind, size=size)
    subprocess.run([sys.executable, "-c", code], check=True)


BUILT_IN = """
import sys, numpy as np
sys.path[:0] = {path}
from confs import algo_config
from drl_cli.algos.lookup import load_algorithm
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import ActionSpec, Column, EnvSpec
for name in {names}:
    module = load_algorithm(name)
    for kind in ("box", "discrete"):
        spec = EnvSpec("x", Column((3,), "float32"), ActionSpec(kind, 2, "x"))
        module.Policy(algo_config(name, module.Config), NetworkConfig((4,), "relu", "uniform"), spec, 0)
        assert "torch" not in sys.modules, name
"""
IN_NUMPY = ["sac", "crossq", "xqc", "mpo", "iql", "awac", "bc", "fql", "mrq", "ppo", "impala", "vmpo", "reppo"]


def test_policies_of_algorithms_with_their_own_critics_are_made_without_torch():
    code = BUILT_IN.format(path=[p for p in sys.path if p], names=IN_NUMPY)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_with_its_own_modules_acts_in_torch():
    config, spec = my_td3.Config(name="my_td3"), spec_of(my_td3)
    assert acting_parts(my_td3.Algorithm, config, NETWORK, spec) is None
    algorithm, policy = my_td3.Algorithm(config, NETWORK, spec, 0, CPU), my_td3.Policy(config, NETWORK, spec, 0)
    policy.load(algorithm.policy_params())
    obs = random_obs(spec.obs, 5, np.random.default_rng(0))
    np.testing.assert_allclose(policy.greedy(obs), algorithm.nets.actor(torch.from_numpy(obs)).detach(), atol=1e-6)
    noise = 0.1 * np.random.default_rng(0).standard_normal((5, 2), np.float32)
    np.testing.assert_allclose(policy.act(obs)["action"], np.clip(policy.greedy(obs) + noise, -1, 1), atol=1e-6)


def test_numpy_forms_are_refused_for_torsos_ensembles_and_own_modules():
    spec = spec_of(sac, IMAGE)
    with building(in_numpy=True):
        assert not isinstance(drl.MLP(3, 2, NETWORK), torch.nn.Module)
        assert drl.Scalar(2.0)() == 2.0
    assert isinstance(drl.MLP(3, 2, NETWORK), torch.nn.Module)
    assert acting_parts(my_sac.Algorithm, OTHERS[my_sac], NETWORK, spec) is None  # drl.Network with a CNN
    twin = SimpleNamespace(file={"networks": my_sac.networks}, policy_parts=("critic",))
    assert acting_parts(twin, OTHERS[my_sac], NETWORK, spec_of(my_sac)) is None
    assert acting_parts(sac.Algorithm, SAC, NETWORK, spec) is not None  # the encoder runs its torso in torch


def test_only_the_networks_of_the_policy_need_a_numpy_form():
    config = crossq.Config(
        name="crossq", gamma=0.9, n_step=1, lr=1e-3, alpha_lr=1e-3, initial_alpha=1.0, target_entropy=None,
        actor_period=1, momentum=0.1, warm_up=0,
    )  # fmt: skip
    assert [*acting_parts(crossq.Algorithm, config, NETWORK, spec_of(sac))] == ["encoder", "actor"]
    with building(in_numpy=True), pytest.raises(NotInNumpy, match="Critic is a torch module"):
        Critic().size  # noqa: B018


def test_exploration_values_are_those_of_the_file_until_others_arrive():
    seen = []

    def policy(nets, obs, explore):
        seen.append(explore["noise"])
        return drl.Deterministic(np.zeros((len(obs), 2), np.float32), explore["noise"])

    own = type("Policy", (td3.Policy,), {})
    config = SimpleNamespace(noise=0.3, noise_kind="gaussian")
    made = own(config, NETWORK, spec_of(sac), 0)
    made.function = policy
    obs = np.zeros((4, 3, 2), np.float32)
    made.act(obs)
    made.explore({"noise": 0.0})
    assert not made.act(obs)["action"].any()
    assert seen == [0.3, 0.0]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_parameter_vector_of_another_size_is_refused(change):
    algorithm, policy = pair(sac)
    params = algorithm.policy_params()
    with pytest.raises(ValueError, match="parameter vector has shape"):
        policy.load(params[:-1] if change < 0 else np.append(params, params[:1]))


def test_the_class_policy_of_a_file_stays():
    file = {"networks": None, "policy": None, "Policy": FunctionPolicy, "drl": drl, "__name__": "own_policy_file"}
    sys.modules["own_policy_file"] = module = type(sys)("own_policy_file")
    vars(module).update(file)
    try:
        exec("class Algorithm(drl.Algorithm):\n    def update(self, batch, counts): ...", vars(module))
        assert module.Policy is FunctionPolicy
        del module.Policy
        exec("class Algorithm(drl.Algorithm):\n    def update(self, batch, counts): ...", vars(module))
        assert issubclass(module.Policy, FunctionPolicy)
        assert module.Policy.__module__ == "own_policy_file"
    finally:
        del sys.modules["own_policy_file"]


@pytest.mark.parametrize(("memory", "names"), [("none", []), ("lstm", ["state"])])
def test_the_policy_stores_the_state_of_an_encoder_with_a_memory(memory, names):
    network = replace(NETWORK, memory=memory, memory_size=4)
    spec = spec_of(sac)
    assert [*sac.Policy.extra_columns(SAC, network, spec)] == names
    assert not my_sac.Policy.extra_columns(OTHERS[my_sac], network, spec)  # drl.Network has no memory
    algorithm, policy = pair(sac, network=network)
    obs = random_obs(spec.obs, 3, np.random.default_rng(0))
    last = PreviousStep.none(spec, 3)
    assert {*policy.act(obs, last)} == {"action", *names} == {*policy.random(obs, last)}
    assert algorithm.policy_parts == (*["memory"] * (memory != "none"), "actor")


def test_a_memory_beside_own_modules_is_a_memory_of_the_policy():
    config, network = my_memory.Config(name="x"), replace(NETWORK, memory="gru", memory_size=5)
    spec = EnvSpec("x", VECTOR, ACTIONS["discrete"])
    policy = my_memory.Policy(config, network, spec, 0)
    assert (policy.acting, policy.memory_size, [*policy.declared_columns]) == (None, 5, ["state"])
    obs, last = random_obs(spec.obs, 4, np.random.default_rng(0)), PreviousStep.none(spec, 4)
    first = policy.act(obs, last)
    second = policy.act(obs, last._replace(begins=np.zeros(4, np.bool_)))
    assert not first["state"].any()
    assert second["state"].any(1).all()
    np.testing.assert_array_equal(policy.act(obs, last)["state"], first["state"])


def batch_of(obs, rows=6):
    rng = np.random.default_rng(0)
    now, then = (mapped(random_obs(obs, rows, rng), torch.from_numpy) for _ in range(2))
    columns = {"obs": now, "next_obs": then, "reward": torch.ones(rows), "discount": torch.full((rows,), 0.9)}
    return columns | {"action": torch.zeros(rows, 2)}


def test_parts_have_the_rates_and_targets_that_the_class_names():
    algorithm, _ = pair(sac, TREE)
    assert algorithm.optimizer.lrs == dict.fromkeys(("torso", "actor", "critic", "log_alpha"), 1e-3)
    assert [*algorithm.params.targets] == ["torso", "critic"]
    other = td3.Algorithm.rates, sac.Algorithm.rates
    assert other == ({}, {"log_alpha": "alpha_lr"})
    assert algorithm.params.names(("encoder", "critic")) == ("torso", "critic")
    assert algorithm.nets.target.encoder.encoder.torso is algorithm.params.targets["torso"].module
    assert algorithm.nets.frozen.encoder.encoder.torso is algorithm.params.frozen("torso")
    before = algorithm.params.flat.clone()
    algorithm.learn(batch_of(TREE), Counts())
    changed = (before != algorithm.params.flat).nonzero().flatten()
    assert {algorithm.params.part_of(int(i)) for i in changed[:: max(1, len(changed) // 500)]} >= {"torso", "critic"}


def test_a_step_of_some_parts_changes_no_other_gradients():
    """The loss of the actor goes through the critic's network, which is not frozen here."""
    algorithm, _ = pair(my_sac)
    nets, batch = algorithm.nets, batch_of(VECTOR)
    before = {name: algorithm.params[name].flat.clone() for name in algorithm.params.slices}
    algorithm.params["critic"].grad.fill_(3.0)
    action, _ = my_sac.policy(nets, batch["obs"], {}).sample_log_prob(torch.zeros(6, 2))
    algorithm.optimizer.minimize(-nets.critic(batch["obs"], action).mean(), "actor")
    changed = [name for name in before if not torch.equal(before[name], algorithm.params[name].flat)]
    assert changed == ["actor"]
    assert algorithm.params["critic"].grad.eq(3.0).all()
    assert algorithm.params["actor"].grad.abs().sum() > 0


def test_the_order_of_names_does_not_matter_for_a_step(monkeypatch):
    """The step of all parts is one step of one tensor, which takes less time."""
    flats, steps, step = [], [], FusedAdam.step
    monkeypatch.setattr(FusedAdam, "step", lambda self, names, factor: steps.append(names) or step(self, names, factor))
    for names in (("critic", "actor", "log_alpha"), ("actor", "critic", "log_alpha"), ()):
        algorithm, _ = pair(my_sac)
        nets, batch = algorithm.nets, batch_of(VECTOR)
        loss = nets.critic(batch["obs"], nets.actor(batch["obs"])[:, :2]).square().mean() + nets.log_alpha().square()
        algorithm.optimizer.minimize(loss, *names)
        flats.append(algorithm.params.flat.clone())
    assert steps == [("actor", "critic", "log_alpha")] * 3
    assert torch.equal(flats[0], flats[1])
    assert torch.equal(flats[0], flats[2])


@dataclass
class Noisy(drl.Noise):
    parts: np.ndarray

    def draw(self, rows, last, rng):
        self.parts = self.parts + 1
        return np.full((rows, 2), 0.25, np.float32) * self.parts


def test_a_noise_of_the_file_is_drawn_and_saved():
    _, policy = pair(sac)
    policy.noise = Noisy(np.zeros(2, np.float32))
    policy.function = lambda nets, obs, explore: drl.Deterministic(np.zeros((len(obs), 2), np.float32), 1.0)
    obs = random_obs(VECTOR, 3, np.random.default_rng(0))
    assert (policy.act(obs)["action"] == 0.25).all()
    state = policy.state()
    assert (policy.act(obs)["action"] == 0.5).all()
    policy.load_state(state)
    assert (policy.act(obs)["action"] == 0.5).all()


def test_the_target_encoder_computes_only_what_is_read(monkeypatch):
    """A torso takes most of the time of an update: an update evaluates it three times."""
    algorithm, _ = pair(sac, IMAGE)
    rows, features = [], Encoder.features

    def noted(self, obs):
        rows.append(self)
        return features(self, obs)

    monkeypatch.setattr(Encoder, "features", noted)
    algorithm.learn(batch_of(IMAGE), Counts())
    nets = algorithm.nets
    assert [*map(id, rows)] == [id(each.encoder.encoder) for each in (nets, nets, nets.target)]


def test_updates_from_sequences_get_n_step_rewards(monkeypatch):
    config = replace(SAC, n_step=2)
    algorithm, seen = sac.Algorithm(config, NETWORK, spec_of(sac), 0, CPU), []
    monkeypatch.setattr(algorithm, "update", lambda batch, counts: seen.append(batch["reward"]))
    batch = mapped(batch_of(VECTOR), lambda x: x.unflatten(0, (2, 3)))
    algorithm.learn(batch | {"valid": torch.ones(2, 3, dtype=torch.bool)}, Counts())
    torch.testing.assert_close(seen[0], torch.tensor([[1.9, 1.9, 1.0]] * 2))
