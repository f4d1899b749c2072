import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from confs import algo_config
from continuous import NETWORK, SPEC, gradient, in_double, make, make_batch
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.offline import cal_ql, cql, cql_discrete, rebrac, td3_bc
from drl_cli.api import Context
from drl_cli.types import ActionSpec, Column, EnvSpec

S = 3
DISCRETE = EnvSpec(
    "x", {"action_mask": Column((4,), "bool"), "x": Column((5,), "float32")}, ActionSpec("discrete", 4, "D")
)


def policy(out, noise):
    """Actions of a tanh-Gaussian and their log-densities, from the change of variables."""
    mean, log_std = out.chunk(2, -1)
    log_std = log_std.clamp(-20, 2).expand_as(noise)
    u = mean + log_std.exp() * noise
    density = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - torch.log(1 - torch.tanh(u) ** 2)
    return u.tanh(), density.sum(-1)


def an_update_equals_an_independent_implementation(module, bound=None):
    """The critics' loss with the importance-sampled conservative term, SAC's losses of actor and temperature."""
    algorithm = make(module, samples=S, cql_alpha=0.8, lr=1e-2, actor_lr=1e-3, tau=0.1, initial_alpha=0.4)
    raw, params, targets = make_batch(), algorithm.params, algorithm.params.targets
    if bound is not None:
        raw["mc_return"] = bound
    batch = in_double(raw)
    obs, action, reward, next_obs, discount, weight = (
        batch[name] for name in ("obs", "action", "reward", "next_obs", "discount", "weight")
    )
    random = torch.Generator()
    random.set_state(algorithm.state()["generator.noise"])
    both = torch.randn(32, 6, generator=random).double()
    own_noise, next_noise = both[:, :3], both[:, 3:]
    others = torch.randn(32, 2 * S * 3, generator=random).double().view(32, 2, S, 3)
    uniform = torch.rand(32, S * 3, generator=random).double().view(32, S, 3) * 2 - 1
    actor = sequential(params["actor"].flat, (5, 16, 12, 6), "tanh")
    critics, slow = (
        [sequential(flat, (8, 16, 12, 1), "tanh") for flat in part.flat.chunk(2)]
        for part in (params["critic"], targets["critic"])
    )
    before = params["actor"].flat.clone()
    with torch.no_grad():
        next_action, _ = policy(actor(next_obs), next_noise)
        x = torch.cat([next_obs, next_action], 1)
        target = reward + discount * torch.minimum(slow[0](x), slow[1](x)).squeeze(1)
        drawn = [policy(actor(o)[:, None], others[:, i]) for i, o in enumerate((obs, next_obs))]  # [B, S, 3], [B, S]
    critic_loss = conservative = 0.0
    for critic in critics:
        q = critic(torch.cat([obs, action], 1)).squeeze(1)
        critic_loss = critic_loss + (weight * (q - target) ** 2).mean()
        terms = []
        for (actions, log_prob), is_own in [*((one, True) for one in drawn), ((uniform, -3 * math.log(2)), False)]:
            each = critic(torch.cat([obs[:, None].expand(-1, S, -1), actions], -1)).squeeze(-1)
            if bound is not None and is_own:
                each = torch.maximum(each, bound.double()[:, None])
            terms.append(each - log_prob)
        conservative = conservative + 0.8 * (weight * (torch.cat(terms, 1).exp().sum(1).log() - q)).mean()
    (critic_loss + conservative).backward()
    expected = gradient(*critics)
    own, log_prob = policy(actor(obs), own_noise)
    least = torch.minimum(*(critic(torch.cat([obs, own], 1)).squeeze(1) for critic in critics))
    (0.4 * log_prob - least).mean().backward()
    update = algorithm.learn(raw, Counts(0))
    assert float(update.metrics["critic_loss"]) == pytest.approx(float(critic_loss.detach()), rel=1e-5)
    assert float(update.metrics["conservative_loss"]) == pytest.approx(float(conservative.detach()), rel=1e-4)
    torch.testing.assert_close(params["critic"].grad.double(), expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)
    step = (params["actor"].flat - before).abs().max()
    assert float(step) == pytest.approx(1e-3, rel=1e-2)  # Adam's first step is the learning rate


def returns():
    return torch.linspace(-0.6, 0.6, 32)


def calibrated(module):
    an_update_equals_an_independent_implementation(module, returns())


def test_an_update_of_discrete_cql_equals_an_independent_implementation():
    """Double DQN plus the conservative term over the legal actions."""
    torch.manual_seed(0)
    config = replace(algo_config("cql_discrete", cql_discrete.Config), cql_alpha=0.7, loss="mse", lr=1e-2)
    algorithm = cql_discrete.Algorithm(config, NETWORK, DISCRETE, 0, Context(torch.device("cpu")))
    target = algorithm.params.targets["online"]
    target.flat.add_(0.3 * torch.randn(target.flat.shape))
    raw, rng = make_batch(is_weighted=False), torch.Generator().manual_seed(2)
    masks = [torch.rand(32, 4, generator=rng) < 0.6 for _ in range(2)]
    raw["action"] = torch.randint(4, (32,), generator=rng)
    masks[0][torch.arange(32), raw["action"]] = True
    masks[1][:, 0] = True
    batch = in_double(raw)
    raw["obs"], raw["next_obs"] = (
        {"x": raw[n], "action_mask": m} for n, m in zip(("obs", "next_obs"), masks, strict=True)
    )
    online, slow = (sequential(flat, (5, 16, 12, 4), "tanh") for flat in (algorithm.params["online"].flat, target.flat))
    with torch.no_grad():
        best = online(batch["next_obs"]).masked_fill(~masks[1], -math.inf).argmax(1, keepdim=True)
        goal = batch["reward"] + batch["discount"] * slow(batch["next_obs"]).gather(1, best).squeeze(1)
    values = online(batch["obs"])
    q = values.gather(1, raw["action"][:, None]).squeeze(1)
    conservative = 0.7 * (values.masked_fill(~masks[0], -math.inf).logsumexp(1) - q).mean()
    loss = 0.5 * ((q - goal) ** 2).mean()
    (loss + conservative).backward()
    update = algorithm.learn(raw, Counts(0))
    assert float(update.metrics["q_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert float(update.metrics["conservative_loss"]) == pytest.approx(float(conservative.detach()), rel=1e-5)
    torch.testing.assert_close(algorithm.params["online"].grad.double(), gradient(online), rtol=1e-3, atol=1e-6)


def test_updates_equal_an_independent_implementation():
    an_update_equals_an_independent_implementation(cql)
    an_update_equals_an_independent_implementation(cal_ql)
    calibrated(cal_ql)


def test_cql_ignores_the_returns():
    with pytest.raises(AssertionError):
        calibrated(cql)


def test_values_of_actions_outside_the_data_fall():
    """Data of the action 0.5 only, rewards 1: Q of the other end is lower with the conservative term."""
    gaps = []
    for weight in (0.0, 2.0):
        algorithm = make(cql, cql_alpha=weight, lr=3e-3, tau=0.05, spec=SPEC)
        batch = make_batch(is_weighted=False)
        batch |= {"action": torch.full((32, 3), 0.5), "reward": torch.ones(32), "discount": torch.zeros(32)}
        for i in range(150):
            algorithm.learn(batch, Counts(i))
        seen, other = (algorithm.nets.critic(batch["obs"], torch.full((32, 3), a)).mean().item() for a in (0.5, -0.9))
        gaps.append(seen - other)
    assert gaps[1] > gaps[0] + 1.0, gaps


def normed(flat, sizes):
    """An MLP with tanh and layer norm after each hidden weight: weight `[in, out]`, bias, gain and bias of the norm."""
    layers, flat = [], flat.double()
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        is_hidden = i < len(sizes) - 2
        shapes = [inputs * outputs, outputs, *([outputs, outputs] if is_hidden else [])]
        *parts, flat = flat.split([*shapes, len(flat) - sum(shapes)])
        layer = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
        layer.weight.data, layer.bias.data = parts[0].view(inputs, outputs).t().clone(), parts[1].clone()
        layers.append(layer)
        if is_hidden:
            norm = torch.nn.LayerNorm(outputs, dtype=torch.float64)
            norm.weight.data, norm.bias.data = parts[2].clone(), parts[3].clone()
            layers += [norm, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)


def normed_gradient(*networks):
    """The gradients of such MLPs in the order of an algorithm's parameters."""
    grads = []
    for network in networks:
        for layer in network:
            if isinstance(layer, torch.nn.Linear):
                grads += [layer.weight.grad.t().flatten(), layer.bias.grad]
            elif isinstance(layer, torch.nn.LayerNorm):
                grads += [layer.weight.grad, layer.bias.grad]
    return torch.cat(grads)


def test_td3_bc_equals_an_independent_implementation():
    """The actor's loss (eq. 3 and 5), with the first critic after its step."""
    algorithm, batch = make(td3_bc, alpha=1.7, lr=1e-2), make_batch()
    actor = sequential(algorithm.params["actor"].flat, (5, 16, 12, 3), "tanh")
    update = algorithm.learn(batch, Counts(0))
    first = sequential(algorithm.params["critic"].flat.chunk(2)[0], (8, 16, 12, 1), "tanh")
    obs, action = (in_double(batch)[name] for name in ("obs", "action"))
    own = actor(obs).tanh()
    q = first(torch.cat([obs, own], 1))
    loss = -(1.7 / q.abs().mean().item()) * q.mean() + torch.nn.functional.mse_loss(own, action)
    loss.backward()
    assert float(update.metrics["actor_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(algorithm.params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)


def test_rebrac_equals_an_independent_implementation():
    """Both losses (eq. 4 and 5): the actor's with the critics after their step."""
    options = {"actor_penalty": 0.3, "critic_penalty": 0.7, "target_noise": 0.6, "noise_clip": 0.5, "lr": 1e-2}
    algorithm, raw = make(rebrac, **options), make_batch()
    raw["next_action"] = torch.rand(32, 3, generator=torch.Generator().manual_seed(5)) * 2 - 1
    batch, params, targets = in_double(raw), algorithm.params, algorithm.params.targets
    obs, action, reward, next_obs, discount, weight, data = (
        batch[name] for name in ("obs", "action", "reward", "next_obs", "discount", "weight", "next_action")
    )
    noise = torch.Generator()
    noise.set_state(algorithm.state()["generator.noise"])
    actor, slow = (sequential(part.flat, (5, 16, 12, 3), "tanh") for part in (params["actor"], targets["actor"]))
    critics, slow_critics = (
        [normed(flat, (8, 16, 12, 1)) for flat in part.flat.chunk(2)] for part in (params["critic"], targets["critic"])
    )
    with torch.no_grad():
        smoothing = (0.6 * torch.randn(32, 3, generator=noise).double()).clamp(-0.5, 0.5)
        next_action = (slow(next_obs).tanh() + smoothing).clamp(-1, 1)
        x = torch.cat([next_obs, next_action], 1)
        next_q = torch.minimum(slow_critics[0](x), slow_critics[1](x)).squeeze(1)
        target = reward + discount * (next_q - 0.7 * ((next_action - data) ** 2).sum(1))
    q = [critic(torch.cat([obs, action], 1)).squeeze(1) for critic in critics]
    critic_loss = sum((weight * (one - target) ** 2).mean() for one in q)
    critic_loss.backward()
    update = algorithm.learn(raw, Counts(0))
    assert float(update.metrics["critic_loss"]) == pytest.approx(float(critic_loss.detach()), rel=1e-5)
    torch.testing.assert_close(params["critic"].grad.double(), normed_gradient(*critics), rtol=1e-3, atol=1e-6)
    new = [normed(flat, (8, 16, 12, 1)) for flat in params["critic"].flat.chunk(2)]
    own = actor(obs).tanh()
    x = torch.cat([obs, own], 1)
    least = torch.minimum(new[0](x), new[1](x)).squeeze(1)
    actor_loss = (0.3 * ((own - action) ** 2).sum(1) - least / least.abs().mean().item()).mean()
    actor_loss.backward()
    assert float(update.metrics["actor_loss"]) == pytest.approx(float(actor_loss.detach()), rel=1e-5)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)


def test_rows_without_a_next_action_have_no_penalty_in_the_targets():
    plain, penalised = make(rebrac, critic_penalty=0.0), make(rebrac, critic_penalty=5.0)
    losses = [one.learn(make_batch(), Counts()).metrics["critic_loss"] for one in (plain, penalised)]
    assert torch.equal(*losses)
