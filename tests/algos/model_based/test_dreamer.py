"""DreamerV3: each loss and all gradients against a slow reference in float64, and the parts of the update."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from continuous import NETWORK
from dreamer_reference import Reference

from drl_cli.algos.base import Counts
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.model_based import dreamer
from drl_cli.algos.torch_policy import random_actions
from drl_cli.errors import Refused
from drl_cli.losses.symlog import symexp_bins
from drl_cli.optim.optimizer_config import OptimizerConfig
from drl_cli.runs.start_text import train_ratio_text
from drl_cli.settings.compose import compose
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec, PreviousStep, map_parts

B, T, H = 4, 3, 2
ACTIONS = {
    "box": ActionSpec("box", 2, "Box"),
    "discrete": ActionSpec("discrete", 3, "Discrete(3)"),
    "multidiscrete": ActionSpec("multidiscrete", 5, "MultiDiscrete", (3, 2)),
}
LOSSES = ("decoder", "reward", "continue", "dynamics", "representation", "actor", "critic", "replay_value")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(dreamer.SIZES, "1m", dreamer.Size(deter=16, units=6, classes=3, channels=2))
    monkeypatch.setattr(dreamer, "BINS", 11)


def config(**options):
    base = compose(["env=CartPole-v1", "algo=dreamer"]).algo
    return dataclasses.replace(base, **{"horizon": H, "gamma": 0.9, "entropy": 0.1, **options})


def make(spec, seed=0, **options):
    torch.manual_seed(seed)
    context = AlgoContext(torch.device("cpu"), optimizer=OptimizerConfig(name="laprop"))
    algorithm = dreamer.Algorithm(config(**options), NETWORK, spec, seed, context)
    algorithm.bins = symexp_bins(11, most=3.0)  # the largest of 20 would make rounding visible
    generator = torch.Generator().manual_seed(seed)
    algorithm.params.flat += 0.3 * torch.randn(len(algorithm.params.flat), generator=generator)  # no head is 0
    algorithm.params.follow(1.0)
    algorithm.params.targets["critic"].flat += 0.1
    return algorithm


def spec_of(kind, obs=None):
    return EnvSpec("x", obs or Column((4,), "float32"), ACTIONS[kind])


def windows(kind, seed=0):
    """Windows that end by a termination, a truncation or at the newest row, and a full one."""
    rng = np.random.default_rng(seed)
    length = np.array([3, 2, 1, 3])
    valid = np.arange(T) < length[:, None]
    terminated = (np.arange(T) == length[:, None] - 1) & np.array([[True], [False], [True], [False]])
    obs, next_obs = (rng.normal(0, 3, (B, T, 4)) * valid[..., None] for _ in range(2))
    next_obs[:, :-1][valid[:, 1:]] = obs[:, 1:][valid[:, 1:]]
    if kind == "box":
        action = rng.normal(0, 1, (B, T, 2)).astype(np.float32)
    elif kind == "discrete":
        action = rng.integers(3, size=(B, T))
    else:
        action = rng.integers([3, 2], size=(B, T, 2))
    columns = {
        "obs": obs.astype(np.float32),
        "next_obs": next_obs.astype(np.float32),
        "action": action,
        "reward": (rng.normal(0, 2, (B, T)) * valid).astype(np.float32),
        "discount": np.where(terminated, 0.0, 0.9).astype(np.float32),
        "terminated": terminated,
        "truncated": np.zeros((B, T), np.bool_),
        "valid": valid,
        "state": np.tanh(rng.normal(0, 1, (B, T, 16))).astype(np.float32),
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@pytest.mark.parametrize("kind", ["box", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*ACTIONS][1:])])
def test_each_loss_and_the_gradient_equal_the_reference(kind):
    algorithm, batch = make(spec_of(kind)), windows(kind)
    noise = algorithm.noise(B, T)
    reference = Reference(algorithm, batch, noise, kind == "box", ACTIONS[kind].choices)
    expected, h = reference.losses()
    loss, metrics, own_h = algorithm.loss(algorithm.nets, batch, noise)
    for name in LOSSES:
        torch.testing.assert_close(metrics[f"{name}_loss"].double(), expected[name].detach(), rtol=1e-4, atol=1e-5)
    scales = {"representation": 0.1, "replay_value": 0.3}
    total = sum(scales.get(name, 1.0) * each for name, each in expected.items())
    torch.testing.assert_close(loss.double(), total, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own_h.double(), h, rtol=1e-4, atol=1e-5)
    assert metrics["return_scale"].item() == pytest.approx(reference.scale, rel=1e-4)
    torch.testing.assert_close(algorithm.nets.returns.ends.double(), reference.ends, rtol=1e-4, atol=1e-6)
    for name, module in algorithm.params.modules.items():
        leaves, doubles = list(module.parameters()), list(reference.nets[name].parameters())
        if not leaves:
            continue
        grads = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
        wanted = torch.autograd.grad(total, doubles, retain_graph=True, allow_unused=True)
        for own, each in zip(grads, wanted, strict=True):
            assert (own is None) == (each is None), name
            if own is not None and each is not None:
                torch.testing.assert_close(own.double(), each, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: n + text)


def test_the_gradient_of_the_whole_loss_equals_that_of_torch_func():
    algorithm, batch = make(spec_of("box")), windows("box")
    noise, modules = algorithm.noise(B, T), algorithm.params.modules

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = torch.nn.ModuleDict(modules)

        def forward(self):
            nets = type(algorithm.nets)({**dict(self.nets.items()), "target": algorithm.nets.target})
            return algorithm.loss(nets, batch, noise)[0]

    whole = Whole()
    values = {name: p.detach().clone() for name, p in whole.named_parameters()}
    buffers = {name: b.clone() for name, b in whole.named_buffers()}

    def loss(values):
        return torch.func.functional_call(whole, {**values, **{n: b.clone() for n, b in buffers.items()}}, ())

    expected = torch.func.grad(loss)(values)
    algorithm.params.differentiate(algorithm.loss(algorithm.nets, batch, noise)[0], tuple(algorithm.params.slices))
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_padding_changes_nothing_but_its_own_noise():
    algorithm, batch = make(spec_of("box")), windows("box")
    noise = algorithm.noise(B, T)
    _, metrics, h = algorithm.loss(algorithm.nets, batch, noise)
    changed = {name: column.clone() for name, column in batch.items()}
    for name in ("obs", "next_obs", "action", "reward"):
        changed[name][~batch["valid"]] = 7.0
    other = make(spec_of("box"))
    _, other_metrics, other_h = other.loss(other.nets, changed, noise)
    for name, metric in metrics.items():
        torch.testing.assert_close(metric, other_metrics[name])
    assert torch.equal(h[:, 1:][batch["valid"]], other_h[:, 1:][batch["valid"]])


def test_an_update_writes_the_states_before_each_step_and_moves_the_slow_critic():
    algorithm, batch = make(spec_of("discrete")), windows("discrete")
    same = make(spec_of("discrete"))
    h = same.loss(same.nets, batch, same.noise(B, T))[2].detach()
    slow = algorithm.params.targets["critic"].flat.clone()
    update = algorithm.update(batch, Counts())
    assert torch.equal(update.columns["state"][:, 0], batch["state"][:, 0])
    torch.testing.assert_close(update.columns["state"][:, 1:], h[:, 1:T])
    expected = slow + 0.02 * (algorithm.params["critic"].flat - slow)
    torch.testing.assert_close(algorithm.params.targets["critic"].flat, expected)


def test_a_divergence_below_1_nat_counts_as_1_and_has_no_gradient():
    logits = torch.stack([torch.full((3, 32), 0.01), torch.full((3, 32), 3.0)])
    logits[:, 0] = 0.0
    logits.requires_grad_()
    q = torch.full((2, 3, 32), 1 / 3)
    near, far = dreamer.kl(logits.softmax(1), q)
    p = torch.tensor([0.0, 3.0, 3.0], dtype=torch.float64).softmax(0)
    assert near.item() == 1.0
    assert far.item() == pytest.approx(32 * float((p * (3 * p).log()).sum()), rel=1e-4)
    (gradient,) = torch.autograd.grad(near + far, logits)
    assert (gradient[0] == 0).all()
    assert (gradient[1] != 0).all()


def test_samples_have_the_given_probabilities():
    probs = torch.tensor([0.1, 0.6, 0.3]).view(1, 3, 1).expand(1, 3, 100_000)
    uniform = torch.rand(1, 100_000, generator=torch.Generator().manual_seed(0))
    z = dreamer.sample(probs, uniform)
    assert torch.equal(z.sum(1), torch.ones(1, 100_000))
    torch.testing.assert_close(z.mean((0, 2)), torch.tensor([0.1, 0.6, 0.3]), atol=0.01, rtol=0)
    just_below_1 = torch.full((1, 1), 1 - 2.0**-24)
    assert dreamer.sample(torch.tensor([0.5, 0.25, 0.25 - 1e-6]).view(1, 3, 1), just_below_1).flatten().tolist() == [
        0,
        0,
        1,
    ]


def policy_of(algorithm, spec, seed=1):
    policy = dreamer.Policy(algorithm.config, NETWORK, spec, seed)
    policy.load(algorithm.policy_params())
    return policy


@pytest.mark.parametrize("how", ["act", "random", "greedy"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_the_policy_carries_the_state_that_the_model_computes(kind, how):
    spec = spec_of(kind)
    algorithm = make(spec)
    nets, policy, rng = algorithm.nets, policy_of(algorithm, spec), np.random.default_rng(1)
    h, last = torch.zeros(2, 16), PreviousStep.none(spec, 2)
    for t in range(3):
        obs = np.random.default_rng(t).normal(0, 1, (2, 4)).astype(np.float32)
        drawn = random_actions(spec.action, obs, rng) if how == "random" else None
        found = getattr(policy, how)(obs, last)
        action = found if how == "greedy" else found["action"]
        probs = nets.rssm.posterior(h, nets.encoder(nets.torso(dreamer.squashed(torch.from_numpy(obs)))))
        if how == "greedy":
            z = (probs == probs.amax(1, keepdim=True)).float().flatten(1)
        else:
            torch.testing.assert_close(torch.from_numpy(found["state"]), h, atol=1e-6, rtol=1e-5)
            z = dreamer.sample(probs, torch.from_numpy(rng.random((2, 32), "float32"))).flatten(1)
        pi = dreamer.action_distribution(nets.actor(torch.cat([h, z], -1)), spec.action)
        expected = {
            "act": lambda pi=pi: pi.sample(rng),
            "random": lambda drawn=drawn: drawn,
            "greedy": lambda pi=pi: pi.mode,
        }
        expected = torch.as_tensor(expected[how]())
        expected = expected.clamp(-1, 1) if kind == "box" else expected
        torch.testing.assert_close(torch.from_numpy(action), expected)
        h = nets.rssm.step(h, z, dreamer.action_inputs(expected, spec.action)).detach()
        torch.testing.assert_close(policy.memory, h, atol=1e-6, rtol=1e-5)
        last = PreviousStep.of(action, np.zeros(2, np.float32), [])
    policy.act(obs, PreviousStep.of(action, np.zeros(2, np.float32), [1]))
    assert np.array_equal(policy.act(obs, PreviousStep.none(spec, 2))["state"], np.zeros((2, 16), np.float32))


@pytest.mark.slow
def test_images_and_vectors_are_encoded_and_decoded():
    spec = spec_of("discrete", {"board": Column((10, 9, 4), "bool"), "speed": Column((3,), "float32")})
    algorithm = make(spec)
    batch = windows("discrete")
    generator = torch.Generator().manual_seed(0)
    for name in ("obs", "next_obs"):
        board = torch.rand(B, T, 10, 9, 4, generator=generator) < 0.3
        batch[name] = {"board": board, "speed": torch.randn(B, T, 3, generator=generator)}
    before = float(algorithm.update(batch, Counts()).metrics["decoder_loss"])
    for _ in range(60):
        update = algorithm.update(batch, Counts())
    assert float(update.metrics["decoder_loss"]) < 0.8 * before
    error = algorithm.nets.decoder.error(torch.zeros(2, 16 + 96), map_parts(lambda x: x[:2, 0], batch["obs"]))
    assert error.shape == (2, 3 + 10 * 9 * 4)


@pytest.mark.parametrize(
    ("network", "options", "obs", "says"),
    [
        ({"memory": "gru"}, {}, None, "network.memory=none"),
        ({}, {}, {"x": Column((4,), "float32"), "action_mask": Column((3,), "bool")}, "algo=gumbel_muzero"),
    ],
)
def test_what_does_not_fit_is_refused(network, options, obs, says):
    spec = spec_of("discrete", obs)
    with pytest.raises(Refused, match=says):
        dreamer.Policy.check(config(**options), dataclasses.replace(NETWORK, **network), spec)


def test_a_run_states_its_train_ratio():
    words = ("env=CartPole-v1", "algo=dreamer", "orchestrator.sample_insert_ratio=0.5", "trainer.batch_size=4")
    (line,) = train_ratio_text(compose([*words, "replay.seq_len=16"]))
    assert line.startswith(
        "train ratio: 32 replayed steps per environment step = orchestrator.sample_insert_ratio 0.5 x"
    )
    assert train_ratio_text(compose(["env=CartPole-v1", "algo=muzero"])) == []


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Reach-v0", "Choose-v0", "Switches-v0"])
def test_the_public_contract(env, monkeypatch):
    """With small bins, and without LaProp's division by tiny gradients, which both make rounding visible."""
    bins = functools.partial(symexp_bins, most=2.0)
    monkeypatch.setattr("drl_cli.losses.public.symexp_bins", bins)
    few = ("replay.seq_len=4", "algo.horizon=3", "optimizer.kwargs={eps: 1e-5}")
    check_algorithm("dreamer", f"env=drl_cli.envs.probes:{env}", *few)
