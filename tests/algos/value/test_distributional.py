import dataclasses
import math

import numpy as np
import pytest
import torch
from confs import algo_config
from nets import layers
from q_batches import q_batch
from torch.nn import functional

from drl_cli.algos.base import Counts
from drl_cli.algos.value import c51, iqn, qr_dqn
from drl_cli.api import Context
from drl_cli.losses.distributional import project, softmax
from drl_cli.losses.value import rescaled, unscaled
from drl_cli.networks.config import NetworkConfig
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec

CPU = Context(torch.device("cpu"))
SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 3, "Discrete(3)"))
SMALL = {
    c51: {"atoms": 7, "v_min": -3.0, "v_max": 3.0},
    qr_dqn: {"quantiles": 6},
    iqn: {"quantiles": 4, "target_quantiles": 6, "policy_quantiles": 5},
}
NAMES = {c51: "c51", qr_dqn: "qr_dqn", iqn: "iqn"}
HIDDEN = {c51: (12,), qr_dqn: (12,), iqn: (10, 12)}  # IQN has a trunk

every = pytest.mark.parametrize("module", NAMES, ids=NAMES.values())


def make(module, seed=0, hidden=None, **options):
    config = algo_config(NAMES[module], module.Config)
    config = dataclasses.replace(config, **SMALL[module] | options)
    return module.Algorithm(config, NetworkConfig(hidden or HIDDEN[module], "tanh", "uniform"), SPEC, seed, CPU)


def make_policy(module, algorithm, **options):
    config = dataclasses.replace(algorithm.config, **options)
    policy = module.Policy(config, algorithm.network, SPEC, 0)
    policy.load(algorithm.policy_params())
    return policy


def values_of(policy, obs):
    return policy.distribution(obs.numpy(), None)[0].values


def outputs(algorithm, obs, fraction=None):
    """Return what the network returns, `[N, 3, K]`; at these fractions, or at those of IQN's policy."""
    with torch.no_grad():
        if "policy_quantiles" not in vars(algorithm.config):
            return algorithm.nets.q(obs)
        return algorithm.nets.q(obs, algorithm.midpoints if fraction is None else fraction)


def mean(module, out):
    return out.softmax(-1) @ torch.linspace(-3, 3, 7) if module is c51 else out.mean(-1)


def make_batch(seed=0, rows=32):
    return q_batch(seed, rows, choices=3, gamma=0.9, scale=1.0)


def split(flat, *shapes):
    pieces = flat.split([*(math.prod(shape) for shape in shapes), len(flat) - sum(map(math.prod, shapes))])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=False)]


def joined(h, weight, bias, dueling):
    """Return `[..., 3, K]` from a last hidden layer; dueling streams are separate layers."""
    if not dueling:
        return (h @ weight + bias).unflatten(-1, (3, -1))
    num = len(bias) // 4
    value = (h[..., :12] @ weight[:12, :num] + bias[:num]).unsqueeze(-2)
    advantage = (h[..., 12:] @ weight[12:, num:] + bias[num:]).unflatten(-1, (3, num))
    return value + advantage - advantage.mean(-2, keepdim=True)


def network(flat, obs, dueling, atoms):
    """`[N, 3, atoms]` from flat parameters."""
    hidden, outputs = (24, 4 * atoms) if dueling else (12, 3 * atoms)
    w1, b1, w2, b2 = split(flat, (5, hidden), (hidden,), (hidden, outputs), (outputs,))
    return joined(torch.tanh(obs @ w1 + b1), w2, b2, dueling)


def implicit(flat, obs, dueling, fraction):
    """`[N, 3, K]` from flat parameters at fractions `[N, K]`, one fraction after the other."""
    hidden, outputs = (24, 4) if dueling else (12, 3)
    shapes = (5, 10), (10,), (64, 10), (10,), (10, hidden), (hidden,), (hidden, outputs), (outputs,)
    wt, bt, we, be, w1, b1, w2, b2 = split(flat, *shapes)
    state, out = torch.tanh(obs @ wt + bt), []
    for tau in fraction.unbind(1):
        cosines = torch.stack([torch.cos(math.pi * i * tau) for i in range(64)], 1)
        h = torch.tanh((state * torch.relu(cosines @ we + be)) @ w1 + b1)
        out.append(joined(h, w2, b2, dueling))
    return torch.cat(out, 2)


def fractions(algorithm, rows=32):
    """Return the fractions of IQN's next update, of the network and of its target, `[N, K]` each."""
    generator = torch.Generator()
    generator.set_state(algorithm.state()["generator.fractions"])
    uniform = torch.rand(rows, 10, generator=generator)
    return (uniform[:, :4] + torch.arange(4)) / 4, (uniform[:, 4:] + torch.arange(6)) / 6


def flat(parts):
    return torch.cat([part.flatten() for part in parts])


@every
@pytest.mark.parametrize(
    "options",
    [
        {"double": False},
        {"double": True, "dueling": True},
        {"double": False, "soft_temperature": 0.3, "munchausen": 0.9},
        {"double": True, "rescale": 0.01},
    ],
    ids=str,
)
def test_gradients_equal_autograd(module, options):
    algorithm, rows = make(module, **options), torch.arange(32)
    for name, target in algorithm.params.targets.items():
        target.flat.copy_(make(module, seed=1, **options).params[name].flat)
    dueling, batch = algorithm.config.dueling, make_batch()
    online = algorithm.params.flat.clone().requires_grad_()
    theirs = flat(target.flat for target in algorithm.params.targets.values())
    if module is iqn:
        tau, target_tau = fractions(algorithm)
        middles = ((torch.arange(5) + 0.5) / 5).expand(32, 5)
    else:
        tau = target_tau = middles = (torch.arange(6) + 0.5) / 6

    def read(flat, obs, at):
        if module is iqn:
            return implicit(flat, obs, dueling, at)
        return network(flat, obs, dueling, 7 if module is c51 else 6)

    with torch.no_grad():
        target, reward = read(theirs, batch["next_obs"], target_tau), batch["reward"]
        law = target.softmax(-1) if module is c51 else target
        chooser = mean(module, read(online, batch["next_obs"], middles) if options["double"] else target)
        if "munchausen" in options:
            pi = functional.softmax(chooser / 0.3, -1)
            log_pi = functional.log_softmax(mean(module, read(theirs, batch["obs"], middles)) / 0.3, -1)
            reward = reward + 0.9 * (0.3 * log_pi[rows, batch["action"]]).clamp(-1, 0)
            reward = reward - batch["discount"] * 0.3 * (pi * pi.log()).sum(-1)
            law = (pi[:, :, None] * law).sum(1)
        else:
            law = law[rows, chooser.argmax(-1)]
    out = read(online, batch["obs"], tau)[rows, batch["action"]]
    if module is c51:
        target = project(law, reward, batch["discount"], torch.linspace(-3, 3, 7), options.get("rescale", 0.0))
        loss = functional.cross_entropy(out, target, reduction="none")
        error = functional.kl_div(out.log_softmax(-1), target, reduction="none").sum(-1)
    else:
        eps = options.get("rescale", 0.0)
        target = reward[:, None] + batch["discount"][:, None] * (unscaled(law, eps) if eps else law)
        target = rescaled(target, eps) if eps else target
        u = target[:, None, :] - out[:, :, None]
        huber = functional.huber_loss(u, torch.zeros_like(u), reduction="none")
        loss = ((tau.unsqueeze(-1) - (u.detach() < 0).float()).abs() * huber).mean(2).sum(1)
        error = (out.mean(-1) - target.mean(-1)).abs()
    loss = (batch["weight"] * loss).mean()
    loss.backward()
    update = algorithm.learn(batch, Counts())
    assert float(update.metrics["q_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert float(update.metrics["q_mean"]) == pytest.approx(
        float(mean(module, out.detach()).mean()), rel=1e-4, abs=1e-6
    )
    torch.testing.assert_close(update.priorities, error.detach(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(algorithm.params.grad, online.grad, rtol=1e-3, atol=1e-6)


@every
@pytest.mark.parametrize("dueling", [True, False])
def test_values_and_priorities_of_policy_and_trainer_are_equal(module, dueling):
    algorithm, batch = make(module, dueling=dueling, double=False), make_batch()
    policy, means = make_policy(module, algorithm), mean(module, outputs(algorithm, batch["obs"]))
    values = values_of(policy, batch["obs"])
    np.testing.assert_allclose(values, means, rtol=1e-4, atol=1e-5)
    assert values.dtype == np.float32
    assert np.array_equal(policy.greedy(batch["obs"].numpy()), means.argmax(-1))
    if module is iqn:  # the trainer's error depends on its random fractions
        return
    rows = {name: column.numpy() for name, column in batch.items()}
    expected = algorithm.learn(batch, Counts()).priorities
    np.testing.assert_allclose(policy.priorities(rows), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("hidden", [(12,), (9, 10, 12)], ids=["no trunk", "two layers of trunk"])
def test_iqn_in_numpy_equals_the_network_for_every_trunk(hidden):
    algorithm, obs = make(iqn, hidden=hidden, dueling=True), make_batch()["obs"]
    expected = mean(iqn, outputs(algorithm, obs))
    np.testing.assert_allclose(values_of(make_policy(iqn, algorithm), obs), expected, rtol=1e-4, atol=1e-5)
    assert ("trunk" in algorithm.params.slices) == (len(hidden) > 1)


@every
def test_policies_act_with_noise_and_compute_what_they_computed_anew_after_new_parameters(module):
    first, second = make(module, noisy=True), make(module, seed=1, noisy=True)
    policy, obs = make_policy(module, first), make_batch()["obs"]
    np.testing.assert_allclose(values_of(policy, obs), mean(module, outputs(first, obs)), rtol=1e-4, atol=1e-5)
    policy.load(second.policy_params())
    expected = mean(module, outputs(second, obs))
    np.testing.assert_allclose(values_of(policy, obs), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(policy.distribution(obs.numpy(), None, rng=policy.rng)[0].values, expected, atol=1e-3)


def test_fractions_are_drawn_for_each_row_and_each_part_of_the_unit_interval():
    algorithm = make(iqn)
    seen = [fraction for _ in range(2) for fraction in algorithm.fractions(32, 4, 6)]
    for fraction, num in zip(seen, (4, 6, 4, 6), strict=True):
        assert fraction.shape == (32, num)
        assert torch.equal((fraction * num).floor(), torch.arange(num).expand(32, num).float())
        assert len(fraction.unique()) == fraction.numel()
    assert not torch.equal(seen[0], seen[2])


def test_iqn_draws_noise_for_trunk_and_outputs():
    algorithm = make(iqn, noisy=True, double=True)
    assert [*algorithm.params.slices] == ["trunk", "embedding", "online", "trunk_sigma", "online_sigma"]
    samples = algorithm.nets.q.noise(6, algorithm.generator)
    assert len({tuple(one.tolist()) for sample in samples for one in sample.values()}) == 12
    biases = [bias for name, one in samples[0].items() for bias in layers(getattr(algorithm.nets, name), one)[1::2]]
    assert len(torch.cat(biases).unique()) == sum(map(len, biases))


RISKS = [("mean", 1.0), ("cvar", 0.25), ("cvar", 1.0), ("power", -2.0), ("power", 2.0)]


@every
@pytest.mark.parametrize(("risk", "level"), RISKS)
def test_a_risk_measure_is_the_mean_over_distorted_quantiles(module, risk, level):
    """Computed from 20,000 quantiles of the distribution."""
    options = {"quantiles": 40} if module is qr_dqn else {"policy_quantiles": 2000} if module is iqn else {}
    algorithm, obs = make(module, **options), make_batch()["obs"][:4]
    value = values_of(make_policy(module, algorithm, risk=risk, risk_level=level), obs)
    share, power = (torch.arange(20_000) + 0.5) / 20_000, 1 / (1 + abs(level))
    at = {"mean": share, "cvar": share * level, "power": share**power if level > 0 else 1 - (1 - share) ** power}[risk]
    if module is iqn:
        expected = outputs(algorithm, obs, at[::10]).mean(-1)
    elif module is qr_dqn:
        expected = outputs(algorithm, obs)[..., (at * 40).long().clamp(max=39)].mean(-1)
    else:
        law = outputs(algorithm, obs).softmax(-1)
        place = torch.searchsorted(law.cumsum(-1).contiguous(), at.expand(4, 3, -1).contiguous())
        expected = algorithm.support[place.clamp(max=6)].mean(-1)
    np.testing.assert_allclose(value, expected, rtol=0, atol=3e-3)
    plain = values_of(make_policy(module, algorithm), obs)
    if level not in (1.0,):
        is_below = module is c51 and (risk == "cvar" or level < 0)
        assert (value < plain).all() if is_below else not np.allclose(value, plain)


def test_a_risk_measure_is_finite_where_rounding_takes_the_mass_above_1():
    probs = softmax(np.random.default_rng(0).normal(size=(64, 3, 7)).astype(np.float32))
    config = dataclasses.replace(make(c51).config, risk="power", risk_level=-1.5)  # a power of 2.5
    assert (probs.cumsum(-1)[..., -1] > 1).any()
    assert np.isfinite(c51.expected(config, probs)).all()


@every
def test_dueling_starts_with_outputs_of_the_usual_size(module):
    """Each output depends on half of the weights, which are drawn from U(-1, 1) / sqrt(half the width)."""
    last = layers(make(module, dueling=True).nets.online)[-2]
    assert 0.8 / 12**0.5 < float(last.abs().max()) <= 1 / 12**0.5


@every
def test_all_options_together_keep_the_contract(module):
    options = ("dueling=true", "noisy=true", "soft_temperature=0.1", "munchausen=0.9", "tau=0.1", "risk=cvar")
    check_algorithm(NAMES[module], *(f"algo.{one}" for one in options), "network.hidden=[16,16]")


def test_iqn_keeps_the_contract_with_dropout_and_layer_norm():
    check_algorithm("iqn", "network.hidden=[16]", "network.layer_norm=true", "network.dropout=0.1", "algo.noisy=true")
