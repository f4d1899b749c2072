import math

import pytest
import torch
from continuous import doubled, gradient, make, make_batch
from references import sequential
from torch.distributions import Normal

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import tqc
from drl_cli.errors import Refused

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
