from itertools import pairwise

import pytest
import torch
from continuous import gradient, in_double, make, make_batch
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.offline import rebrac, td3_bc


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
    algorithm = make(rebrac, **options)
    raw = make_batch()
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
