import pytest
import torch
from continuous import SPEC, config_of, doubled, make, make_batch
from references import sequential
from test_td3_ddpg_d4pg import ATOMS, V_MAX, V_MIN, projected
from test_tqc_redq import sample

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import crossq, xqc
from drl_cli.api import Context
from drl_cli.chains.process_group import ProcessGroup
from drl_cli.errors import Refused
from drl_cli.networks.batch_renorm import BatchRenorm, linear, renormalised
from drl_cli.networks.config import NetworkConfig
from drl_cli.optim.products import Products

OPTIONS = {"actor_period": 2, "initial_alpha": 0.3, "warm_up": 0, "momentum": 0.2, "lr": 1e-2}


def forward(leaves, stats, x, trains):
    """Return the values `[2, B]` of both critics by plain loops, and the batch statistics of every norm."""
    values, seen = [], []
    for n in range(2):
        h, found = x, []
        for layer, (slow_mean, slow_std) in enumerate((mean[n, 0], std[n, 0]) for mean, std in stats):
            mean, std = h.mean(0), (h.var(0, correction=0) + 1e-3).sqrt()
            found.append((mean.detach(), std.detach()))
            r = (std / slow_std).clamp(1 / 3, 3).detach()
            d = ((mean - slow_mean) / slow_std).clamp(-5, 5).detach()
            h = (h - mean) / std * r + d if trains else (h - slow_mean) / slow_std
            h = h * leaves[f"norms.{layer}.gain"][n, 0] + leaves[f"norms.{layer}.bias"][n, 0]
            h = h @ leaves[f"weights.{layer}"][n] + leaves[f"biases.{layer}"][n, 0]
            h = torch.tanh(h) if layer < len(stats) - 1 else h
        values.append(h.squeeze(1))
        seen.append(found)
    return torch.stack(values), seen


def doubles(critic):
    leaves = {name: p.detach().double().clone().requires_grad_() for name, p in critic.named_parameters()}
    return leaves, [(norm.mean.double().clone(), norm.std.double().clone()) for norm in critic.norms]


def check_running(moved, stats, seen):
    """Check that the running statistics of both critics moved by a share of 0.2 to those of the batch."""
    for layer, running in enumerate(moved):
        for n in range(2):
            for own, old, new in zip(running, stats[layer], seen[n][layer], strict=True):
                torch.testing.assert_close(own[n, 0], 0.8 * old[n, 0] + 0.2 * new, rtol=1e-4, atol=1e-5)


def started(module, options):
    """Return an algorithm, its critics, a batch, the log-probabilities of the next actions, and the joined inputs.

    Also return a function that checks the loss of the actor, given the values of observations and actions `[B, 8]`.
    """
    algorithm, batch = make(module, **options), make_batch()
    critic, generator = algorithm.params.modules["critic"], torch.Generator()
    for norm in critic.norms:
        norm.mean.normal_(0, 0.3)
        norm.std.uniform_(0.5, 2)
    generator.set_state(algorithm.state()["generator.noise"])
    noise = [torch.randn(32, 3, generator=generator).double() for _ in range(2)]
    actor = sequential(algorithm.params["actor"].flat, (5, 16, 12, 6), "tanh")
    obs, action, _, next_obs, *_ = doubled(batch)
    with torch.no_grad():
        next_action, next_log_prob = sample(actor, next_obs, noise[0])
    x = torch.cat([torch.cat([obs, next_obs]), torch.cat([action, next_action])], 1)

    def check_actor(update, value_of):
        new, log_prob = sample(actor, obs, noise[1])
        actor_loss = (0.3 * log_prob - value_of(torch.cat([obs, new], 1))).mean()
        assert float(update.metrics["actor_loss"].detach()) == pytest.approx(float(actor_loss.detach()), rel=1e-4)

    return algorithm, critic, batch, next_log_prob, x, check_actor


def check_critics(update, loss, error, critic, leaves):
    """Check the loss of the critics, the priorities, and the gradients."""
    assert float(update.metrics["critic_loss"].detach()) == pytest.approx(float(loss.detach()), rel=1e-4)
    torch.testing.assert_close(update.priorities.detach().double(), error.detach(), rtol=1e-3, atol=1e-4)
    for name, parameter in [(name, p) for name, p in critic.named_parameters() if p.requires_grad]:
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=1e-3, atol=1e-5)


def test_an_update_equals_an_independent_implementation():
    algorithm, critic, batch, next_log_prob, x, check_actor = started(crossq, OPTIONS)
    leaves, stats = doubles(critic)
    _, _, reward, _, discount, weight = doubled(batch)
    values, seen = forward(leaves, stats, x, trains=True)
    q, next_q = values[:, :32], values[:, 32:].detach()
    target = reward + discount * (next_q.amin(0) - 0.3 * next_log_prob)
    critic_loss = (weight * (q - target) ** 2).mean(1).sum()
    critic_loss.backward()
    update = algorithm.learn(batch, Counts(0))
    check_critics(update, critic_loss, (q - target).abs().mean(0), critic, leaves)
    after, moved = doubles(critic)
    check_running(moved, stats, seen)
    check_actor(update, lambda x: forward(after, moved, x, trains=False)[0].amin(0))
    assert not algorithm.params.targets


def test_batch_renormalisation_is_batch_norm_while_it_warms_up_and_for_equal_statistics():
    x, plain = torch.randn(1, 64, 5), torch.nn.BatchNorm1d(5, eps=1e-3, affine=False)
    norm = BatchRenorm(1, 5, momentum=0.5, warm_up=1)
    norm.mean.fill_(3.0)
    torch.testing.assert_close(norm(x, batch_statistics=True)[0], plain(x[0]))  # the first batch
    assert not torch.allclose(norm(x, batch_statistics=True)[0], plain(x[0]))
    other = BatchRenorm(1, 5, momentum=0.5, warm_up=0)
    other.mean.copy_(x.mean(1, keepdim=True))
    other.std.copy_((x.var(1, keepdim=True, correction=0) + 1e-3).sqrt())
    torch.testing.assert_close(other(x, batch_statistics=False), other(x, batch_statistics=True))


def test_gradients_of_the_normalisation_and_of_its_layers():
    sizes = [(2, 7, 3), (2, 1, 3), (2, 1, 3)]
    inputs = [torch.randn(size, dtype=torch.double, requires_grad=True) for size in sizes]
    assert torch.autograd.gradcheck(lambda x, gain, bias: renormalised(x, gain, bias, 1e-3), inputs)
    layer = [torch.randn(size, dtype=torch.double, requires_grad=True) for size in [(2, 7, 3), (2, 3, 4), (2, 4)]]
    assert torch.autograd.gradcheck(lambda *args: linear(Products(), *args), layer)


def test_narrow_layers_are_not_rounded_where_torch_casts():
    x, weight, bias = torch.randn(2, 7, 3), torch.randn(2, 3, 4), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out = linear(Products(), x, weight, bias)
    assert torch.equal(out, linear(Products(), x, weight, bias))


@pytest.mark.parametrize("option", [{"layer_norm": True}, {"dropout": 0.1}, {"memory": "lstm"}], ids=str)
@pytest.mark.parametrize("module", [crossq, xqc])
def test_options_that_do_not_fit_batch_norm_are_refused(module, option):
    (key,) = option
    with pytest.raises(Refused, match=rf"^network\.{key}=.* batch norm.*say network\.{key}="):
        module.Policy.check(config_of(module), NetworkConfig((8,), "tanh", "uniform", **option), SPEC)


@pytest.mark.parametrize("module", [crossq, xqc])
def test_several_trainers_are_refused(module):
    with pytest.raises(Refused, match=r"trainer.num=2: .* say trainer.num=1"):
        make(module, context=Context(torch.device("cpu"), ProcessGroup(0, 2)))


XQC = {"atoms": ATOMS, "v_min": V_MIN, "v_max": V_MAX, "tau": 0.1, "momentum": 0.2, "lr": 1e-2} | {
    "initial_alpha": 0.3,
    "actor_period": 2,
}


def xqc_forward(leaves, stats, x, trains):
    """Return the log-probabilities `[2, B, K]` of both critics by plain loops, and the statistics of every norm."""
    outputs, seen = [], []
    for n in range(2):
        h, found = x, []
        for layer in range(3):  # the norms of the inputs and of 2 hidden layers
            h = h if layer == 0 else h @ leaves[f"weights.{layer - 1}"][n]
            found.append((h.mean(0).detach(), (h.var(0, correction=0) + 1e-3).sqrt().detach()))
            if trains:
                h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-3).sqrt()
            else:
                h = (h - stats[layer][0][n, 0]) / stats[layer][1][n, 0]
            h = h * leaves[f"norms.{layer}.gain"][n, 0] + leaves[f"norms.{layer}.bias"][n, 0]
            h = h if layer == 0 else torch.tanh(h)
        outputs.append((h @ leaves["weights.2"][n] + leaves["bias"][n]).log_softmax(1))
        seen.append(found)
    return torch.stack(outputs), seen


def test_an_update_of_xqc_equals_an_independent_implementation():
    algorithm, critic, batch, next_log_prob, x, check_actor = started(xqc, XQC)
    values, slow = torch.linspace(V_MIN, V_MAX, ATOMS).double(), algorithm.params.targets["critic"]
    (leaves, stats), (slow_leaves, slow_stats) = doubles(critic), doubles(slow.module)
    slow_before = slow.flat.clone()
    _, _, reward, _, discount, weight = doubled(batch)
    next_probs = xqc_forward(slow_leaves, slow_stats, x, trains=True)[0][:, 32:].exp().detach()
    is_second = next_probs[1] @ values < next_probs[0] @ values
    assert 0 < is_second.sum() < 32
    lower = torch.where(is_second[:, None], next_probs[1], next_probs[0])
    columns = (lower, reward, discount, 0.3 * next_log_prob)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    target = torch.tensor([projected(*row) for row in rows], dtype=torch.float64)
    log_probs, seen = xqc_forward(leaves, stats, x, trains=True)
    log_probs = log_probs[:, :32]
    critic_loss = sum(-(weight * (target * one).sum(1)).mean() for one in log_probs)
    critic_loss.backward()
    update = algorithm.learn(batch, Counts(0))
    divergence = (torch.xlogy(target, target) - target * log_probs.detach()).sum(2).mean(0)
    check_critics(update, critic_loss, divergence, critic, leaves)
    assert [name for name, parameter in critic.named_parameters() if parameter.grad is None] == ["norms.0.bias"]
    for weight in critic.weights:
        torch.testing.assert_close(weight.square().sum(1), torch.ones_like(weight[:, 0]))
    torch.testing.assert_close(slow.flat, slow_before + 0.1 * (algorithm.params["critic"].flat - slow_before))
    after, moved = doubles(critic)
    check_running(moved, stats, seen)
    check_actor(update, lambda x: (xqc_forward(after, moved, x, trains=False)[0].exp() @ values).amin(0))
    assert algorithm.config.target_entropy == -1.5
