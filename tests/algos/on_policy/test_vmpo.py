import pytest
import torch
from continuous import gradient
from references import sequential
from torch.distributions import Categorical, Normal, kl_divergence

from drl_cli.algos.base import Counts
from drl_cli.losses.returns import gae
from drl_cli.testing import Case

SMALL = (
    *("network.hidden=[8]", "algo.epochs=1", "algo.minibatch_size=null", "optimizer.max_norm=null"),
    *("algo.epsilon_temperature=0.3", "algo.epsilon_kl=0.02", "algo.epsilon_std=0.005", "algo.alpha_start=2"),
    *("algo.temperature_start=0.7", "trainer.on_nonfinite=stop"),
)
ENVS = {"discrete": "CartPole-v1", "box": "Pendulum-v1"}
NUM = 40


def distribution(kind, out, log_std):
    return Categorical(logits=out) if kind == "discrete" else Normal(out, log_std.exp())


def summed(kind, values):
    return values if kind == "discrete" else values.sum(-1)


@pytest.mark.parametrize("kind", ENVS)
def test_an_update_equals_an_independent_implementation(kind):
    """The policy has moved since the start of the update, so that the divergences have a gradient."""
    case = Case("vmpo", f"env={ENVS[kind]}", *SMALL)
    algorithm, batch = case.algorithm(), case.batch(0, NUM)
    size, outputs = (4, 2) if kind == "discrete" else (3, 1)
    params = algorithm.params
    critic = sequential(params["critic"].flat.clone(), (size, 8, 1), "tanh")
    old = sequential(params["actor"].flat.clone(), (size, 8, outputs), "tanh")
    old_log_std = params["log_std"].flat.double().clone()
    make_steps, moves = algorithm.minibatches.of, torch.Generator().manual_seed(5)

    def moved(rollout):
        for name in ("actor", "log_std"):
            params[name].flat.add_(0.2 * torch.randn(params[name].flat.shape, generator=moves))
        return make_steps(rollout)

    algorithm.minibatches.of = moved
    lr = {name: params[name].flat.clone() for name in ("temperature", "alpha")}
    algorithm.optimizer.step = lambda *args, **kwargs: None  # so that the gradients are those before the step
    update = algorithm.learn(dict(batch), Counts())
    new = sequential(params["actor"].flat.clone(), (size, 8, outputs), "tanh")
    log_std = params["log_std"].flat.double().clone().requires_grad_()
    temperature, alpha = (lr[name].double().requires_grad_() for name in ("temperature", "alpha"))

    doubled = {name: c.double() if c.dtype == torch.float32 else c for name, c in batch.items()}
    value, following = (critic(doubled[name])[:, 0].detach() for name in ("obs", "next_obs"))
    advantage = gae(doubled["reward"], doubled["discount"], value, following, doubled["cut"], 0.95).double()
    eta, weights = torch.nn.functional.softplus(temperature), torch.nn.functional.softplus(alpha)
    best = advantage.argsort(descending=True)[: NUM // 2]
    psi = (advantage[best] / eta.detach()).softmax(0)
    before, now = distribution(kind, old(doubled["obs"]), old_log_std), None
    now = distribution(kind, new(doubled["obs"]), log_std)
    log_prob = summed(kind, now.log_prob(doubled["action"]))
    policy_loss = -(psi * log_prob[best]).sum()
    if kind == "discrete":
        kls, bounds = [kl_divergence(before, now).mean()], [0.02]
    else:
        by_mean, by_std = Normal(now.mean, before.stddev.detach()), Normal(before.mean.detach(), now.stddev)
        kls = [kl_divergence(before, one).sum(-1).mean() for one in (by_mean, by_std)]
        bounds = [0.02, 0.005]
    dual_loss = eta[0] * 0.3 + eta[0] * (advantage[best] / eta).exp().mean().log()
    for weight, kl, bound in zip(weights, kls, bounds, strict=True):
        dual_loss = dual_loss + weight * (bound - kl.detach()) + weight.detach() * kl
    target = value + advantage
    value_loss = 0.5 * (critic(doubled["obs"])[:, 0] - target).square().mean()
    (policy_loss + dual_loss + 0.5 * value_loss).backward()
    assert update.metrics["policy_loss"].item() == pytest.approx(policy_loss.item(), rel=1e-4)
    assert update.metrics["kl"].item() == pytest.approx(kls[0].item(), rel=1e-3)
    expected = {
        "actor": gradient(new),
        "critic": gradient(critic),
        "temperature": temperature.grad,
        "alpha": alpha.grad,
    }
    expected |= {"log_std": log_std.grad} if kind == "box" else {}
    for name, one in expected.items():
        torch.testing.assert_close(params[name].grad.double(), one, rtol=2e-3, atol=1e-5, msg=f"gradient of {name}")


def test_each_epoch_has_its_own_e_step():
    case, seen = Case("vmpo", "env=CartPole-v1", *SMALL, "algo.epochs=2", "algo.dual_lr=0.2"), []
    algorithm = case.algorithm()
    assert [algorithm.optimizer.lrs[name] for name in ("temperature", "alpha")] == [0.2, 0.2]
    make_steps = algorithm.minibatches.of
    algorithm.minibatches.of = lambda rollout: (seen.append(rollout.rows["psi"]), make_steps(rollout))[1]
    assert algorithm.learn(case.batch(0, NUM), Counts()).steps == len(seen) == 2
    assert ((seen[0] > 0) == (seen[1] > 0)).all()
    assert (seen[0] - seen[1]).abs().max() > 0.01  # the temperature has changed
