import dataclasses
import math

import pytest
import torch
from continuous import NETWORK, doubled, gradient, make, make_batch
from references import sequential
from torch.distributions import Normal

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import redq, tqc
from drl_cli.errors import Refused
from drl_cli.testing import check_algorithm

OPTIONS = {"critics": 3, "quantiles": 4, "dropped": 2, "initial_alpha": 0.3, "tau": 0.1, "lr": 1e-2}


def sample(actor, obs, noise):
    """Return actions and log-probabilities of a tanh-Gaussian (SAC, appendix C)."""
    mean, log_std = actor(obs).chunk(2, -1)
    u = mean + log_std.exp() * noise
    log_prob = Normal(mean, log_std.exp()).log_prob(u) - torch.log(1 - u.tanh() ** 2)
    return u.tanh(), log_prob.sum(-1)


def test_an_update_equals_an_independent_implementation():
    """The critics learn first; then actor and temperature learn with the changed critics."""
    algorithm, batch = make(tqc, **OPTIONS), make_batch()
    params, targets = algorithm.params, algorithm.params.targets
    generator = torch.Generator()
    generator.set_state(algorithm.state()["generator.noise"])
    noise = [torch.randn(32, 3, generator=generator).double() for _ in range(2)]
    actor = sequential(params["actor"].flat, (5, 16, 12, 6), "tanh")
    critics, slow = (
        [sequential(flat, (8, 16, 12, 4), "tanh") for flat in part.flat.chunk(3)]
        for part in (params["critic"], targets["critic"])
    )
    before, log_alpha = targets["critic"].flat.clone(), torch.tensor(math.log(0.3)).double().requires_grad_()
    obs, action, reward, next_obs, discount, weight = doubled(batch)
    with torch.no_grad():
        next_action, next_log_prob = sample(actor, next_obs, noise[0])
        x = torch.cat([next_obs, next_action], 1)
        pooled = torch.cat([critic(x) for critic in slow], 1).sort(1).values  # [B, 12]
        target = reward[:, None] + discount[:, None] * (pooled[:, :6] - 0.3 * next_log_prob[:, None])
    losses, errors = [], []
    for critic in critics:
        quantiles = critic(torch.cat([obs, action], 1))
        error = target[:, None, :] - quantiles[:, :, None]
        size = torch.where(error.abs() <= 1, 0.5 * error**2, error.abs() - 0.5)
        fraction = torch.tensor([0.125, 0.375, 0.625, 0.875]).double()[:, None]
        losses.append((weight[:, None, None] * (fraction - (error < 0).double()).abs() * size).mean())
        errors.append((quantiles.mean(1) - target.mean(1)).abs())
    critic_loss = sum(losses) / 3
    critic_loss.backward()
    update = algorithm.learn(batch, Counts(0))
    assert float(update.metrics["critic_loss"]) == pytest.approx(float(critic_loss.detach()), rel=1e-5)
    torch.testing.assert_close(update.priorities.double(), sum(errors).detach() / 3, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(params["critic"].grad.double(), gradient(*critics), rtol=1e-3, atol=1e-7)
    critics = [sequential(flat, (8, 16, 12, 4), "tanh") for flat in params["critic"].flat.chunk(3)]
    new, log_prob = sample(actor, obs, noise[1])
    value = torch.cat([critic(torch.cat([obs, new], 1)) for critic in critics], 1).mean(1)
    actor_loss, entropy = (0.3 * log_prob - value).mean(), -log_prob.mean().detach()
    (actor_loss + log_alpha * (entropy + 3)).backward()  # the target entropy is -3
    for name, found in {"actor_loss": actor_loss, "entropy": entropy, "alpha": torch.tensor(0.3)}.items():
        assert float(update.metrics[name]) == pytest.approx(float(found.detach()), rel=1e-4), name
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(params["log_alpha"].grad.double(), log_alpha.grad[None], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(targets["critic"].flat, before + 0.1 * (params["critic"].flat - before))


def test_no_quantile_left_is_refused():
    with pytest.raises(Refused, match=r"algo.dropped=4 has to be below algo.quantiles=4"):
        make(tqc, quantiles=4, dropped=4)


REDQ = {"critics": 4, "subset": 2, "actor_period": 2, "initial_alpha": 0.3, "tau": 0.1, "lr": 1e-2}


def dropped(critics, x, masks):
    """Return the values `[N, B]` of the critics, whose hidden outputs are multiplied by the masks `[N, B, width]`."""
    values = []
    for i, critic in enumerate(critics):
        h, layer = x, 0
        for module in critic:
            h = module(h)
            if isinstance(module, torch.nn.Tanh):
                h, layer = h * masks[layer][i], layer + 1
        values.append(h.squeeze(1))
    return torch.stack(values)


def masks_of(uniform, rate, critics=4):
    """Return the masks of the two hidden layers from uniform numbers `[B, 4 * (16 + 12)]`."""
    kept = (uniform >= rate).double() / (1 - rate)
    return [part.unflatten(1, (critics, -1)).transpose(0, 1) for part in kept.split([critics * 16, critics * 12], 1)]


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_an_update_of_redq_equals_an_independent_implementation(rate):
    """REDQ's algorithm 1, with the dropout of DroQ's algorithm 2 in critics and target critics."""
    network = dataclasses.replace(NETWORK, dropout=rate)
    algorithm, batch = make(redq, network=network, **REDQ), make_batch()
    params, targets = algorithm.params, algorithm.params.targets
    generator = torch.Generator()
    generator.set_state(algorithm.state()["generator.noise"])
    draws = []
    for _ in range(2):  # one for the critics, one for the actor
        noise, masks = torch.randn(32, 3, generator=generator).double(), [[torch.ones(4, 1, 1)] * 2] * 2
        subset = torch.rand(4, generator=generator).argsort()[:2]
        if rate:
            masks = [masks_of(torch.rand(32, 4 * 28, generator=generator), rate) for _ in range(2)]
        draws.append((noise, subset, *masks))
    actor = sequential(params["actor"].flat, (5, 16, 12, 6), "tanh")
    critics, slow = (
        [sequential(flat, (8, 16, 12, 1), "tanh") for flat in part.flat.chunk(4)]
        for part in (params["critic"], targets["critic"])
    )
    before = targets["critic"].flat.clone()
    obs, action, reward, next_obs, discount, weight = doubled(batch)
    noise, subset, own, theirs = draws[0]
    with torch.no_grad():
        next_action, next_log_prob = sample(actor, next_obs, noise)
        least = dropped(slow, torch.cat([next_obs, next_action], 1), theirs)[subset].amin(0)
        target = reward + discount * (least - 0.3 * next_log_prob)
    q = dropped(critics, torch.cat([obs, action], 1), own)
    critic_loss = (weight * (q - target) ** 2).mean(1).sum()
    critic_loss.backward()
    update = algorithm.learn(batch, Counts(0))
    assert float(update.metrics["critic_loss"]) == pytest.approx(float(critic_loss.detach()), rel=1e-5)
    torch.testing.assert_close(update.priorities.double(), (q - target).abs().mean(0).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(params["critic"].grad.double(), gradient(*critics), rtol=1e-3, atol=1e-6)
    critics = [sequential(flat, (8, 16, 12, 1), "tanh") for flat in params["critic"].flat.chunk(4)]
    noise, _, own, _ = draws[1]
    new, log_prob = sample(actor, obs, noise)
    actor_loss = (0.3 * log_prob - dropped(critics, torch.cat([obs, new], 1), own).mean(0)).mean()
    actor_loss.backward()
    assert float(update.metrics["actor_loss"]) == pytest.approx(float(actor_loss.detach()), rel=1e-4)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(targets["critic"].flat, before + 0.1 * (params["critic"].flat - before))
    flat = params["actor"].flat.clone()
    assert "actor_loss" not in algorithm.learn(batch, Counts(1)).metrics
    assert torch.equal(params["actor"].flat, flat)


def test_every_update_draws_its_own_subset():
    algorithm = make(redq, critics=4, subset=2)
    subsets = {tuple(sorted(algorithm.draw(8)[1].tolist())) for _ in range(60)}
    assert len(subsets) == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["redq", pytest.param("droq", marks=pytest.mark.exhaustive)])
def test_it_keeps_the_contract(name):
    check_algorithm(name, "env=Pendulum-v1", "network.hidden=[16,16]", "algo.actor_period=3")


def test_a_subset_that_is_too_large_is_refused():
    with pytest.raises(Refused, match=r"algo.subset=3 must not be above algo.critics=2"):
        make(redq, critics=2, subset=3)
