import pytest
import torch
from continuous import doubled, gradient, make, make_batch
from references import sequential
from torch.distributions import Normal, kl_divergence

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import mpo

SAMPLES, EPSILONS = 4, (0.1, 0.02, 0.01)
OPTIONS = dict(zip(("epsilon", "epsilon_mean", "epsilon_std"), EPSILONS, strict=True))


def normal(actor, obs):
    mean, log_std = actor(obs).chunk(2, 1)
    return Normal(mean, log_std.clamp(-20, 2).exp())


def test_an_update_equals_an_independent_implementation():
    """Every gradient is that of the parameters before the step (equations of docs/algorithms/mpo.md)."""
    algorithm, batch = make(mpo, samples=SAMPLES, target_period=2, **OPTIONS), make_batch()
    params, targets = algorithm.params, algorithm.params.targets
    actor, slow = (sequential(part.flat, (5, 16, 12, 6), "tanh") for part in (params["actor"], targets["actor"]))
    critic, slow_critic = (
        sequential(part.flat, (8, 16, 12, 1), "tanh") for part in (params["critic"], targets["critic"])
    )
    duals = params["duals"].flat.clone().double().requires_grad_()
    before = {name: target.flat.clone() for name, target in targets.items()}
    obs, action, reward, next_obs, discount, weight = doubled(batch)
    noise = torch.randn(32, SAMPLES * 3, generator=torch.Generator().manual_seed(1)).double()
    temperature, mean_weight, std_weight = duals.exp()
    with torch.no_grad():
        old = normal(slow, next_obs)
        drawn = [old.mean + old.stddev * noise[:, 3 * i : 3 * i + 3] for i in range(SAMPLES)]
        next_q = torch.stack([slow_critic(torch.cat([next_obs, u.tanh()], 1))[:, 0] for u in drawn])
        target = reward + discount * next_q.mean(0)
        best = (next_q / temperature).softmax(0)
    error = critic(torch.cat([obs, action], 1))[:, 0] - target
    new = normal(actor, next_obs)
    by_mean, by_std = Normal(new.mean, old.stddev), Normal(old.mean, new.stddev)
    fits = [p * (by_mean.log_prob(u) + by_std.log_prob(u)).sum(1) for p, u in zip(best, drawn, strict=True)]
    mean_kl, std_kl = (kl_divergence(old, one).sum(1).mean() for one in (by_mean, by_std))
    actor_loss, likelihood = -sum(fits).mean(), ((next_q / temperature).exp().mean(0)).log().mean()
    (actor_loss + mean_weight.detach() * mean_kl + std_weight.detach() * std_kl).backward()
    (weight * error**2).mean().backward()
    dual_loss = temperature * (EPSILONS[0] + likelihood) + mean_weight * (EPSILONS[1] - mean_kl.detach())
    (dual_loss + std_weight * (EPSILONS[2] - std_kl.detach())).backward()
    update = algorithm.learn(batch, Counts(0))
    for name, value in {"actor_loss": actor_loss, "mean_kl": mean_kl, "std_kl": std_kl}.items():
        assert float(update.metrics[name]) == pytest.approx(float(value.detach()), rel=1e-4), name
    torch.testing.assert_close(update.priorities.double(), error.detach().abs(), rtol=1e-4, atol=1e-5)
    for name, expected in (("critic", gradient(critic)), ("actor", gradient(actor)), ("duals", duals.grad)):
        torch.testing.assert_close(params[name].grad.double(), expected, rtol=2e-3, atol=1e-5)
    for name, one in targets.items():
        assert torch.equal(one.flat, before[name])  # target networks are copied after every second update
    algorithm.learn(batch, Counts(1))
    for name, one in targets.items():
        torch.testing.assert_close(one.flat, params[name].flat)


@pytest.fixture(autouse=True)
def known_noise(monkeypatch):
    noise = torch.randn(32, SAMPLES * 3, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr("drl_cli.optim.context.Context.randn", lambda self, rows, size, _: noise[:rows, :size])
