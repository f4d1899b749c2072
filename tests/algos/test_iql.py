import math

import numpy as np
import pytest
import torch
from continuous import NETWORK, SPEC, config_of, gradient, in_double, make, make_batch, policy_of
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.offline import iql


def log_density(action, mean, log_std):
    """The log-density of independent normal distributions, from the definition."""
    terms = -((action - mean) ** 2) / (2 * log_std.exp() ** 2) - log_std - 0.5 * math.log(2 * math.pi)
    return terms.sum(1)


def test_an_update_equals_an_independent_implementation():
    """The three losses (eq. 5, 6, 7), their gradients, the priorities and the step of the target networks."""
    algorithm = make(iql, expectile=0.8, beta=2.0, max_weight=1.0, lr=1e-2, tau=0.1)
    params, targets, raw = algorithm.params, algorithm.params.targets, make_batch()
    params["log_std"].flat.copy_(torch.tensor([-0.5, 0.3, -7.0]))  # the last is below the least
    batch = in_double(raw)
    obs, action, reward, next_obs, discount, weight = (
        batch[name] for name in ("obs", "action", "reward", "next_obs", "discount", "weight")
    )
    actor = sequential(params["actor"].flat, (5, 16, 12, 3), "tanh")
    value = sequential(params["value"].flat, (5, 16, 12, 1), "tanh")
    critics, slow = (
        [sequential(flat, (8, 16, 12, 1), "tanh") for flat in part.flat.chunk(2)]
        for part in (params["critic"], targets["critic"])
    )
    before = targets["critic"].flat.clone()
    x, v = torch.cat([obs, action], 1), value(obs).squeeze(1)
    with torch.no_grad():
        slow_q = torch.minimum(slow[0](x), slow[1](x)).squeeze(1)
        target = reward + discount * value(next_obs).squeeze(1)
    gap = slow_q - v
    value_loss = (weight * torch.where(gap < 0, 0.2, 0.8) * gap**2).mean()
    q = [critic(x).squeeze(1) for critic in critics]
    critic_loss = sum((weight * (one - target) ** 2).mean() for one in q)
    likely = torch.exp(2.0 * gap).clamp(max=1.0).detach()
    assert (likely == 1.0).any()
    log_std = torch.tensor([-0.5, 0.3, -5.0]).double().requires_grad_()
    actor_loss = -(likely * log_density(action, actor(obs).tanh(), log_std)).mean()
    (value_loss + critic_loss + actor_loss).backward()
    update = algorithm.learn(raw, Counts(0))
    found = {name: float(update.metrics[name]) for name in ("value_loss", "critic_loss", "actor_loss")}
    expected = {"value_loss": value_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
    assert found == pytest.approx({name: float(loss.detach()) for name, loss in expected.items()}, rel=1e-5)
    for name, network in {"actor": [actor], "value": [value], "critic": critics}.items():
        torch.testing.assert_close(params[name].grad.double(), gradient(*network), rtol=1e-3, atol=1e-6)
    std_grad = params["log_std"].grad.double()
    torch.testing.assert_close(std_grad[:2], log_std.grad[:2], rtol=1e-3, atol=1e-6)
    assert std_grad[2] == 0  # clipped
    error = sum((one - target).abs() for one in q).detach() / 2
    torch.testing.assert_close(update.priorities.double(), error, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(targets["critic"].flat, before + 0.1 * (params["critic"].flat - before))


def test_the_policy_draws_from_the_gaussian():
    algorithm = make(iql)
    algorithm.params["log_std"].flat.copy_(torch.tensor([-3.0, -2.0, -9.0]))
    policy, obs = policy_of(iql, algorithm), np.ones((20_000, 5), np.float32)
    greedy, drawn = policy.greedy(obs)[0], policy.act(obs)["action"]
    mean = sequential(algorithm.params["actor"].flat, (5, 16, 12, 3), "tanh")(torch.ones(1, 5).double()).tanh()
    np.testing.assert_allclose(greedy, mean[0].detach(), atol=1e-5)
    np.testing.assert_allclose(drawn.std(0), np.exp([-3.0, -2.0, -5.0]), rtol=0.05)
    np.testing.assert_allclose(drawn.mean(0), greedy, atol=0.01)
    assert np.abs(drawn).max() <= 1


def test_actions_at_the_ends_of_the_range_have_finite_densities():
    batch = make_batch()
    batch["action"] = batch["action"].sign()
    assert float(make(iql).learn(batch, Counts()).metrics["actor_loss"]) < 1e4


def test_actions_of_an_untrained_policy_are_clipped():
    action = iql.Policy(config_of(iql), NETWORK, SPEC, 0)
    action.load(make(iql).policy_params())
    assert np.abs(action.act(np.ones((500, 5), np.float32))["action"]).max() == 1.0
