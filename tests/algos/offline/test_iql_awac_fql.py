import math

import numpy as np
import pytest
import torch
from confs import algo_config
from continuous import NETWORK, SPEC, config_of, gradient, in_double, make, make_batch, policy_of
from references import sequential
from test_cql_td3_bc import normed, normed_gradient

from drl_cli.algos.base import Counts
from drl_cli.algos.offline import awac, bc, fql, iql
from drl_cli.api import Context
from drl_cli.types import ActionSpec, Column, EnvSpec


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


def test_actions_of_an_untrained_policy_are_clipped():
    action = iql.Policy(config_of(iql), NETWORK, SPEC, 0)
    action.load(make(iql).policy_params())
    assert np.abs(action.act(np.ones((500, 5), np.float32))["action"]).max() == 1.0


def noise_of(algorithm, size):
    random = torch.Generator()
    random.set_state(algorithm.state()["generator.noise"])
    return torch.randn(32, size, generator=random).double(), random


def columns(batch):
    batch = in_double(batch)
    return (batch[name] for name in ("obs", "action", "reward", "next_obs", "discount", "weight"))


def test_awac_equals_an_independent_implementation():
    """Both losses (eq. 4 and 13) with the same parameters, and their gradients."""
    algorithm, batch = make(awac, temperature=0.5, max_weight=1.0, lr=1e-2), make_batch()
    params, targets = algorithm.params, algorithm.params.targets
    params["log_std"].flat.copy_(torch.tensor([-0.5, 0.3, -7.0]))
    noise, _ = noise_of(algorithm, 6)
    obs, action, reward, next_obs, discount, weight = columns(batch)
    actor = sequential(params["actor"].flat, (5, 16, 12, 3), "tanh")
    critics, slow = (
        [sequential(flat, (8, 16, 12, 1), "tanh") for flat in part.flat.chunk(2)]
        for part in (params["critic"], targets["critic"])
    )
    log_std = torch.tensor([-0.5, 0.3, -5.0]).double().requires_grad_()
    std, mean = log_std.detach().exp(), actor(obs).tanh()
    with torch.no_grad():
        drawn = (mean + std * noise[:, :3]).clamp(-1, 1)
        next_action = (actor(next_obs).tanh() + std * noise[:, 3:]).clamp(-1, 1)
        x = torch.cat([next_obs, next_action], 1)
        target = reward + discount * torch.minimum(slow[0](x), slow[1](x)).squeeze(1)
        own = torch.cat([obs, drawn], 1)
        value = torch.minimum(critics[0](own), critics[1](own)).squeeze(1)
    q = [critic(torch.cat([obs, action], 1)).squeeze(1) for critic in critics]
    critic_loss = sum((weight * (one - target) ** 2).mean() for one in q)
    likely = torch.exp((torch.minimum(*q).detach() - value) / 0.5).clamp(max=1.0)
    assert (likely == 1.0).any()
    actor_loss = -(likely * log_density(action, mean, log_std)).mean()
    (critic_loss + actor_loss).backward()
    update = algorithm.learn(batch, Counts(0))
    assert float(update.metrics["critic_loss"]) == pytest.approx(float(critic_loss.detach()), rel=1e-5)
    assert float(update.metrics["actor_loss"]) == pytest.approx(float(actor_loss.detach()), rel=1e-5)
    torch.testing.assert_close(params["critic"].grad.double(), gradient(*critics), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)


def test_fql_equals_an_independent_implementation():
    """The three losses (eq. 4, 6 and 8) with the same parameters, and their gradients."""
    algorithm, batch = make(fql, alpha=0.7, flow_steps=4, lr=1e-2), make_batch()
    params, targets = algorithm.params, algorithm.params.targets
    params["actor"].flat.mul_(4.0)  # so that actions are clipped
    params["flow"].flat.mul_(2.0)
    noise, random = noise_of(algorithm, 9)
    next_noise, start, own = noise.chunk(3, 1)
    time = torch.rand(32, 1, generator=random).double()
    obs, action, reward, next_obs, discount, weight = columns(batch)
    actor, flow = (sequential(params[n].flat, (w, 16, 12, 3), "tanh") for n, w in (("actor", 8), ("flow", 9)))
    critics, slow = (
        [normed(flat, (8, 16, 12, 1)) for flat in part.flat.chunk(2)] for part in (params["critic"], targets["critic"])
    )
    with torch.no_grad():
        x = torch.cat([next_obs, actor(torch.cat([next_obs, next_noise], 1)).clamp(-1, 1)], 1)
        target = reward + discount * (slow[0](x) + slow[1](x)).squeeze(1) / 2
        end = own
        for i in range(4):
            end = end + flow(torch.cat([obs, end, torch.full((32, 1), i / 4).double()], 1)) / 4
        end = end.clamp(-1, 1)
    q = [critic(torch.cat([obs, action], 1)).squeeze(1) for critic in critics]
    critic_loss = sum((weight * (one - target) ** 2).mean() for one in q)
    critic_loss.backward()
    expected = normed_gradient(*critics)
    velocity = flow(torch.cat([obs, (1 - time) * start + time * action, time], 1))
    flow_loss = torch.nn.functional.mse_loss(velocity, action - start)
    drawn = actor(torch.cat([obs, own], 1))
    x = torch.cat([obs, drawn.clamp(-1, 1)], 1)
    own_q = (critics[0](x) + critics[1](x)).squeeze(1) / 2
    actor_loss = 0.7 * torch.nn.functional.mse_loss(drawn, end) - own_q.mean() / own_q.abs().mean().item()
    (flow_loss + actor_loss).backward()
    update = algorithm.learn(batch, Counts(0))
    losses = {"critic_loss": critic_loss, "flow_loss": flow_loss, "actor_loss": actor_loss}
    found = {name: float(update.metrics[name]) for name in losses}
    assert found == pytest.approx({name: float(loss.detach()) for name, loss in losses.items()}, rel=1e-4)
    torch.testing.assert_close(params["critic"].grad.double(), expected, rtol=1e-3, atol=1e-6)
    for name, network in {"actor": actor, "flow": flow}.items():
        torch.testing.assert_close(params[name].grad.double(), gradient(network), rtol=1e-3, atol=1e-6)


def test_the_policy_of_fql_has_one_action_for_each_noise():
    algorithm, obs = make(fql), np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    policy, noise = policy_of(fql, algorithm, seed=3), np.random.default_rng(3).standard_normal((7, 3), np.float32)
    actor = sequential(algorithm.params["actor"].flat, (8, 16, 12, 3), "tanh")
    for drawn, found in ((noise, policy.act(obs)["action"]), (0 * noise, policy.greedy(obs))):
        expected = actor(torch.from_numpy(np.concatenate([obs, drawn], 1)).double()).clamp(-1, 1)
        np.testing.assert_allclose(found, expected.detach(), atol=1e-5)


def test_a_mixture_equals_an_independent_implementation():
    algorithm, batch = make(bc, components=2), make_batch(is_weighted=False)
    params = algorithm.params
    params["log_std"].flat.copy_(torch.tensor([-0.5, 0.3, -7.0, 0.1, -0.2, 0.4]))
    network = sequential(params["actor"].flat, (5, 16, 12, 8), "tanh")
    obs, action = (in_double(batch)[name] for name in ("obs", "action"))
    out, stds = network(obs), torch.tensor([[-0.5, 0.3, -5.0], [0.1, -0.2, 0.4]]).double()
    shares, means = out[:, 6:].softmax(1), (out[:, :3].tanh(), out[:, 3:6].tanh())
    density = sum(shares[:, k] * log_density(action, means[k], stds[k]).exp() for k in range(2))
    loss = -density.log().mean()
    loss.backward()
    update = algorithm.learn(batch, Counts())
    assert float(update.metrics["actor_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(network), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["box", "mixture", "discrete"])
def test_bc_learns_the_distribution_of_the_data(kind):
    """Actions 0.6 and -0.2, or choices 2 and 0, with the shares 3/4 and 1/4, in every state."""
    spec = (
        SPEC if kind != "discrete" else EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 3, "Discrete(3)"))
    )
    algorithm = make(bc, spec=spec, lr=1e-2, components=2 if kind == "mixture" else 1)
    batch, is_most = make_batch(is_weighted=False), torch.arange(32) % 4 > 0
    batch["action"] = torch.where(is_most, 0.6, -0.2)[:, None].expand(-1, 3).contiguous()
    if kind == "discrete":
        batch["action"] = torch.where(is_most, 2, 0)
    for i in range(400):
        batch["obs"] = torch.randn(32, 5, generator=torch.Generator().manual_seed(i))
        algorithm.learn(batch, Counts(i))
    policy = bc.Policy(config_of(bc, components=algorithm.config.components), NETWORK, spec, 0)
    policy.load(algorithm.policy_params())
    obs = np.random.default_rng(1).standard_normal((2000, 5)).astype(np.float32)
    greedy, drawn = policy.greedy(obs), policy.act(obs)["action"]
    if kind == "discrete":
        assert (greedy == 2).all()
        np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 2000, [0.25, 0.0, 0.75], atol=0.05)
        return
    best, std = (0.4, math.sqrt(3) / 4 * 0.8) if kind == "box" else (0.6, math.sqrt(3) / 4 * 0.8)
    np.testing.assert_allclose(greedy.mean(0), best, atol=0.05)
    np.testing.assert_allclose(greedy, best, atol=0.3)
    np.testing.assert_allclose(drawn.std(0), std, atol=0.06)
    near = np.abs(drawn - 0.6).max(1) < 0.1
    assert (near.mean() > 0.6) == (kind == "mixture"), near.mean()


def test_bc_learns_only_legal_choices():
    """The loss of the data's action is 0 where no other choice is legal."""
    obs = {"action_mask": Column((4,), "bool"), "x": Column((5,), "float32")}
    spec = EnvSpec("x", obs, ActionSpec("discrete", 4, "Discrete(4)"))
    algorithm = bc.Algorithm(algo_config("bc", bc.Config), NETWORK, spec, 0, Context(torch.device("cpu")))
    batch = make_batch(is_weighted=False) | {"action": torch.arange(32) % 4}
    masks = torch.eye(4, dtype=torch.bool)[batch["action"]]
    batch["obs"], batch["next_obs"] = ({"x": batch[name], "action_mask": masks} for name in ("obs", "next_obs"))
    assert float(algorithm.learn(batch, Counts()).metrics["actor_loss"]) == pytest.approx(0.0, abs=1e-6)
