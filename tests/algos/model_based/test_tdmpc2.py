"""TD-MPC2: each loss and all gradients against a slow reference in float64, plans, and the memory of the policy."""

import dataclasses

import numpy as np
import pytest
import torch
from continuous import NETWORK, config_of
from tdmpc2_reference import Reference, run
from torch.testing import assert_close

from drl_cli.algos.base import Counts
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.model_based import tdmpc2
from drl_cli.errors import Refused
from drl_cli.losses.symlog import symlog
from drl_cli.settings.compose import compose
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec, PreviousStep

B, T, A, H = 5, 3, 2, 2
SPEC = EnvSpec("x", Column((4,), "float32"), ActionSpec("box", A, "Box(2,)"))
SMALL = {"horizon": H, "iterations": 2, "samples": 10, "policy_samples": 3, "elites": 4, "gamma": 0.9}
LOSSES = ("consistency", "reward", "value", "termination", "actor")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    for name, value in (("ENCODER", 12), ("LATENT", 16), ("UNITS", 10), ("END_UNITS", 6)):
        monkeypatch.setattr(tdmpc2, name, value)


def make(seed=0, spec=SPEC, **options):
    torch.manual_seed(seed)
    config = config_of(tdmpc2, **{**SMALL, **options})
    algorithm = tdmpc2.Algorithm(config, NETWORK, spec, seed, AlgoContext(torch.device("cpu")))
    generator = torch.Generator().manual_seed(seed)
    algorithm.params.flat += 0.3 * torch.randn(len(algorithm.params.flat), generator=generator)  # no head is 0
    algorithm.params.targets["critic"].flat += 0.2 * torch.randn(
        len(algorithm.params.targets["critic"].flat), generator=generator
    )
    return algorithm


def windows(seed=0):
    """Windows that end by a termination, a truncation or at the newest row, and full ones."""
    rng = np.random.default_rng(seed)
    length = np.array([3, 2, 1, 3, 2])
    valid = np.arange(T) < length[:, None]
    terminated = (np.arange(T) == length[:, None] - 1) & np.array([[True], [False], [True], [False], [True]])
    columns = {
        "obs": rng.normal(0, 2, (B, T, 4)) * valid[..., None],
        "next_obs": rng.normal(0, 2, (B, T, 4)) * valid[..., None],
        "action": rng.uniform(-1, 1, (B, T, A)) * valid[..., None],
        "reward": rng.normal(0, 5, (B, T)) * valid,
        "discount": np.where(terminated, 0.0, 0.9),
        "terminated": terminated,
        "valid": valid,
    }
    return {k: torch.from_numpy(x if x.dtype == bool else x.astype(np.float32)) for k, x in columns.items()}


def noise_of(algorithm):
    """The noise of an update, with a quarter of the units dropped."""
    noise = algorithm.noise(B, T)
    generator = torch.Generator().manual_seed(1)
    return {**noise, "kept": (torch.rand(noise["kept"].shape, generator=generator) > 0.25).float() / 0.75}


@pytest.mark.parametrize("critics", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_each_loss_and_the_gradient_equal_the_reference(critics):
    algorithm, batch = make(critics=critics, entropy=0.1), windows()
    noise, reference = noise_of(algorithm), Reference(algorithm)
    expected = reference.losses(batch, noise)
    loss, metrics = algorithm.loss(algorithm.nets, batch, noise)
    for name in LOSSES:
        assert_close(metrics[f"{name}_loss"].double(), expected[name].detach(), rtol=1e-4, atol=1e-6)
    scales = {"consistency": 20.0, "reward": 0.1, "value": 0.1, "termination": 1.0, "actor": 1.0}
    total = sum(scales[name] * expected[name] for name in LOSSES)
    assert_close(loss.double(), total, rtol=1e-4, atol=1e-5)
    assert metrics["value_range"].item() == pytest.approx(reference.scale, rel=1e-4)
    for name, module in algorithm.params.modules.items():
        leaves, doubles = list(module.parameters()), list(reference.nets[name].parameters())
        if leaves:
            grads = torch.autograd.grad(loss, leaves, retain_graph=True)
            wanted = torch.autograd.grad(total, doubles, retain_graph=True)
            for own, each in zip(grads, wanted, strict=True):
                assert_close(own.double(), each, rtol=2e-3, atol=1e-5, msg=lambda text, n=name: n + text)


def test_the_gradient_of_the_whole_loss_equals_that_of_torch_func(monkeypatch):
    algorithm, batch = make(), windows()
    noise, modules = noise_of(algorithm), algorithm.params.modules

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = torch.nn.ModuleDict(modules)

        def forward(self, frozen):
            nets = type(algorithm.nets)(dict(self.nets.items()))
            nets.target, nets.frozen = algorithm.nets.target, frozen
            return algorithm.loss(nets, batch, noise)[0]

    whole = Whole()
    values = {name: p.detach().clone() for name, p in whole.named_parameters()}
    buffers = {name: b.clone() for name, b in whole.named_buffers()}

    def loss(values):
        changed = {**values, **{n: b.clone() for n, b in buffers.items()}}
        return torch.func.functional_call(whole, changed, (algorithm.nets.frozen,))

    with monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_compiling", lambda: True)  # torch.func can't use nodes by hand
        expected = torch.func.grad(loss)(values)
    algorithm.params.differentiate(algorithm.loss(algorithm.nets, batch, noise)[0], tuple(algorithm.params.slices))
    for name, parameter in whole.named_parameters():
        assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_padding_changes_nothing():
    algorithm, batch = make(), windows()
    noise = noise_of(algorithm)
    loss, metrics = algorithm.loss(algorithm.nets, batch, noise)
    other = make()
    for name in ("obs", "next_obs", "action", "reward"):
        batch[name][~batch["valid"]] = 7.0
    other_loss, others = other.loss(other.nets, batch, noise)
    assert_close(loss, other_loss)
    for name in LOSSES:
        assert_close(metrics[f"{name}_loss"], others[f"{name}_loss"])


def test_numbers_and_their_loss():
    values = torch.tensor([-30.0, -0.5, 0.0, 2.0, 500.0])
    position = (symlog(values) + 10) / 0.2
    low = position.floor().long()
    probs = torch.zeros(5, 101).scatter_(1, low[:, None], (1 - position + low)[:, None])
    probs = probs.scatter_add_(1, low[:, None] + 1, (position - low)[:, None])
    assert_close(tdmpc2.number(probs.log()), values, rtol=1e-3, atol=1e-4)
    assert tdmpc2.number_loss(torch.zeros(1, 101), torch.tensor([torch.inf])).isnan().all()


def test_the_encoder_learns_more_slowly_and_the_prior_is_clipped_alone():
    algorithm = make(lr=1e-3)
    assert algorithm.part("encoder").lr == pytest.approx(3e-4)
    assert {algorithm.part(name).lr for name in ("dynamics", "critic", "actor")} == {1e-3}
    assert [algorithm.part(name).max_norm for name in ("actor", "critic")] == [20.0, None]
    assert compose(["env=Pendulum-v1", "algo=tdmpc2"]).optimizer.max_norm == 20.0


def test_an_update_moves_the_target_critics_and_draws_two_critics():
    algorithm = make(critics=4, tau=0.25)
    slow = algorithm.params.targets["critic"].flat.clone()
    algorithm.update(windows(), Counts())
    expected = slow + 0.25 * (algorithm.params["critic"].flat - slow)
    assert_close(algorithm.params.targets["critic"].flat, expected)
    drawn = [tuple(algorithm.noise(2, 1)["two"].tolist()) for _ in range(60)]
    assert len(set(drawn)) == 12
    assert all(len(set(two)) == 2 for two in drawn)
    kept = algorithm.noise(2000, 1)["kept"]
    assert (kept == 0).float().mean().item() == pytest.approx(0.01, abs=0.002)
    assert kept.max().item() == pytest.approx(1 / 0.99)


def policy_of(algorithm, spec=SPEC, seed=1):
    policy = tdmpc2.Policy(algorithm.config, NETWORK, spec, seed)
    policy.load(algorithm.policy_params())
    return policy


def test_returns_equal_the_reference_also_where_episodes_end():
    algorithm = make()
    z = torch.rand(2, 16, generator=torch.Generator().manual_seed(0))
    action = 2 * torch.rand(2, 40, H, A, generator=torch.Generator().manual_seed(1)) - 1
    with torch.no_grad():  # some states end the episode, and others nearly do
        logits = algorithm.nets.termination(
            algorithm.nets.dynamics(torch.cat([z[0].expand(40, -1), action[0, :, 0]], 1))
        )
        algorithm.nets.termination[-1].bias -= logits.quantile(0.7)
    found, reference = tdmpc2.returns(algorithm.nets, 0.9, z, action), Reference(algorithm)
    for e in range(2):
        for n in range(40):
            expected = reference.value_of(z[e].double(), action[e, n].double())
            assert_close(found[e, n].double(), expected, rtol=1e-4, atol=1e-5)


def test_the_prior_proposes_plans():
    algorithm = make()
    policy, reference = policy_of(algorithm), Reference(algorithm)
    noise = policy.noise(np.random.default_rng(0), 2)
    z, seen = torch.rand(2, 16), []
    monkey = pytest.MonkeyPatch()
    monkey.setattr(tdmpc2, "mppi", lambda *args: seen.append(args) or ())
    tdmpc2.plan(policy.nets, policy.config, z, torch.zeros(2, H, A), noise)
    monkey.undo()
    _, proposed, _, sampled, *options = seen[0]
    for e in range(2):
        for n in range(3):
            state = z[e].double()
            for h in range(H):
                center, log_std = reference.prior(state)
                action = (center + log_std.exp() * noise[e, n, h].double()).tanh()
                assert_close(proposed[e, n, h].double(), action, rtol=1e-4, atol=1e-5)
                state = run(reference.nets["dynamics"], torch.cat([state, action]))
    assert sampled.shape == (2, 2, 7, H, A)
    assert torch.equal(sampled.flatten(1, 2), noise[:, 3:])
    assert options == [4, 0.5, (0.05, 2.0)]


@pytest.mark.parametrize("size", [19, 20])
def test_many_actions_have_two_more_iterations(size):
    spec = dataclasses.replace(SPEC, action=ActionSpec("box", size, "Box"))
    policy = policy_of(make(spec=spec), spec)
    assert policy.noise(policy.rng, 1).shape == (1, 3 + (2 if size < 20 else 4) * 7, H, size)


@pytest.mark.parametrize("how", ["act", "greedy"])
def test_a_plan_starts_at_the_last_plan_and_an_episode_at_0(how):
    policy, twin = policy_of(make()), policy_of(make())
    rng, obs, mean = np.random.default_rng(1), np.ones((3, 4), np.float32), torch.zeros(3, H, A)
    last = PreviousStep.none(SPEC, 3)
    for t in range(5):  # the third plan is replayed
        noise = twin.noise(rng, 3) if how == "act" else twin.fixed_noise.expand(3, -1, -1, -1)
        obs = obs + np.float32(0.1)
        with torch.no_grad():
            z = twin.nets.encoder(torch.from_numpy(obs))
            plan, std, elites, weight = tdmpc2.plan(twin.nets, twin.config, z, mean, noise)
            expected = tdmpc2.first_action(rng, std, elites, weight) if how == "act" else plan[:, 0]
        found = policy.act(obs, last)["action"] if how == "act" else policy.greedy(obs, last)
        assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-6)
        mean = torch.cat([plan[:, 1:], torch.zeros(3, 1, A)], 1)
        begun = [1] if t == 2 else []
        mean[begun] = 0
        last = PreviousStep.of(found, np.zeros(3, np.float32), begun)
    assert policy.replays.why is None


def test_a_restored_policy_goes_on_with_the_same_plans():
    policy, other = policy_of(make()), policy_of(make(), seed=2)
    obs, last = np.ones((2, 4), np.float32), PreviousStep.none(SPEC, 2)
    for _ in range(3):
        last = PreviousStep.of(policy.act(obs, last)["action"], np.zeros(2, np.float32), [])
    other.load_state(policy.state())
    assert np.array_equal(policy.act(obs, last)["action"], other.act(obs, last)["action"])


def test_environments_do_not_change_each_others_plans():
    policy, alone = policy_of(make()), policy_of(make())
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    together = policy.greedy(obs, PreviousStep.none(SPEC, 3))
    single = [alone.greedy(obs[i : i + 1], PreviousStep.none(SPEC, 1))[0] for i in range(3)]
    np.testing.assert_allclose(together, single, rtol=1e-4, atol=1e-5)


def test_without_plans_the_prior_acts():
    policy, reference = policy_of(make(plan=False)), Reference(make())
    obs, rng = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32), np.random.default_rng(1)
    mean, log_std = map(torch.stack, zip(*map(reference.prior, map(reference_z(reference), obs)), strict=True))
    normal = torch.from_numpy(rng.standard_normal((3, A), np.float32)).double()
    assert_close(torch.from_numpy(policy.greedy(obs)).double(), mean.tanh(), rtol=1e-4, atol=1e-5)
    expected = (mean + log_std.exp() * normal).tanh()
    assert_close(torch.from_numpy(policy.act(obs)["action"]).double(), expected, rtol=1e-4, atol=1e-5)
    assert policy.memory_size == 0
    planner = policy_of(make())
    planner.searches = False
    np.testing.assert_array_equal(planner.greedy(obs, PreviousStep.none(SPEC, 3)), policy.greedy(obs))


def reference_z(reference):
    return lambda obs: run(reference.nets["encoder"], torch.from_numpy(obs).double())


def test_random_actions_need_no_plan():
    policy = policy_of(make())
    policy.replays = None
    assert policy.random(np.zeros((2, 4), np.float32), PreviousStep.none(SPEC, 2)).keys() == {"action"}


@pytest.mark.parametrize(
    ("network", "options", "says"),
    [
        ({"memory": "gru"}, {}, "network.memory=none"),
        ({}, {"policy_samples": 10}, "algo.samples=10"),
        ({}, {"elites": 11}, "algo.samples=10"),
    ],
)
def test_what_does_not_fit_is_refused(network, options, says):
    fits = config_of(tdmpc2, **{**SMALL, "policy_samples": 9, "elites": 10})
    tdmpc2.Policy.check(fits, NETWORK, SPEC)
    config = config_of(tdmpc2, **{**SMALL, **options})
    with pytest.raises(Refused, match=says):
        tdmpc2.Policy.check(config, dataclasses.replace(NETWORK, **network), SPEC)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Reach-v0", "PatchReach-v0"])
def test_the_public_contract(env):
    few = ("algo.samples=10", "algo.policy_samples=3", "algo.elites=4", "algo.iterations=2")
    check_algorithm("tdmpc2", f"env=drl_cli.envs.probes:{env}", "optimizer.kwargs={eps: 1e-5}", *few)
