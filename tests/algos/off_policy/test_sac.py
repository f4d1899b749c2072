import dataclasses

import pytest
import torch
from confs import algo_config
from continuous import make_batch
from references import flattened, sequential
from torch.distributions import Normal
from torch.distributions.transforms import TanhTransform
from torch.nn import functional

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy.sac import Algorithm, Config
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import ActionSpec, Column, EnvSpec

CPU = Context(torch.device("cpu"))
SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("box", 3, "Box(3,)"))
CONFIG = algo_config("sac", Config, lr=1e-3, alpha_lr=2e-3, tau=0.01, initial_alpha=0.5)


def make(activation="tanh", seed=0, spec=SPEC, config=CONFIG):
    return Algorithm(config, NetworkConfig((16, 12), activation, "uniform"), spec, seed, CPU)


class Reference:
    """SAC's three losses, all before any step, on float64 torch.nn modules; starts as an algorithm does."""

    def __init__(self, algorithm, activation):
        params = {name: algorithm.params[name].flat.clone() for name in ("actor", "critic", "log_alpha")}
        params["target"] = algorithm.params.targets["critic"].flat.clone()
        self.noise = torch.Generator()
        self.noise.set_state(algorithm.state()["generator.noise"])
        self.actor = sequential(params["actor"], (5, 16, 12, 6), activation)
        halves = [params[name].chunk(2) for name in ("critic", "target")]
        self.critics, self.targets = (
            [sequential(flat, (8, 16, 12, 1), activation) for flat in half] for half in halves
        )
        self.log_alpha = params["log_alpha"].double().requires_grad_()
        critic_params = [p for critic in self.critics for p in critic.parameters()]
        self.optimizers = (
            torch.optim.Adam(critic_params, CONFIG.lr),
            torch.optim.Adam(self.actor.parameters(), CONFIG.lr),
            torch.optim.Adam([self.log_alpha], CONFIG.alpha_lr),
        )

    def sample(self, obs, noise):
        mean, log_std = self.actor(obs).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        u, squash = mean + std * noise, TanhTransform()
        action = squash(u)
        log_prob = Normal(mean, std).log_prob(u) - squash.log_abs_det_jacobian(u, action)
        return action, log_prob.sum(-1)

    def q(self, critics, obs, action):
        return torch.stack([critic(torch.cat([obs, action], -1)).squeeze(-1) for critic in critics])

    def update(self, batch):
        obs, action, reward, next_obs, discount = (
            batch[name].double() for name in ("obs", "action", "reward", "next_obs", "discount")
        )
        alpha = self.log_alpha.exp().detach()
        noise, next_noise = torch.randn(len(obs), 6, generator=self.noise).double().chunk(2, -1)
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs, next_noise)
            next_value = self.q(self.targets, next_obs, next_action).amin(0) - alpha * next_log_prob
            target = reward + discount * next_value
        q = self.q(self.critics, obs, action)
        weight = batch.get("weight", torch.ones(len(target))).double()
        critic_loss = sum((weight * functional.mse_loss(one, target, reduction="none")).mean() for one in q)
        new_action, log_prob = self.sample(obs, noise)
        actor_loss = (alpha * log_prob - self.q(self.critics, obs, new_action).amin(0)).mean()
        alpha_loss = (-self.log_alpha * (log_prob.detach() - 3.0)).mean()
        for optimizer, loss in zip(self.optimizers, (critic_loss, actor_loss, alpha_loss), strict=True):
            params = optimizer.param_groups[0]["params"]
            for param, grad in zip(params, torch.autograd.grad(loss, params, retain_graph=True), strict=True):
                param.grad = grad
        for optimizer in self.optimizers:
            optimizer.step()
        for critic, slow in zip(self.critics, self.targets, strict=True):
            for new, old in zip(critic.parameters(), slow.parameters(), strict=True):
                old.data = (1 - CONFIG.tau) * old.data + CONFIG.tau * new.data
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "alpha": alpha[0],
            "entropy": -log_prob.mean(),
            "q_mean": q.mean(),
        }
        return metrics, (q - target).abs().mean(0)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_updates_equal_an_independent_implementation(activation, is_weighted):
    algorithm = make(activation)
    # Log standard deviations beyond their bounds in one dimension each: no gradient may come through the clamp.
    biases = algorithm.params["actor"].flat[-6:]
    biases[3], biases[4] = 2.5, -20.5
    reference = Reference(algorithm, activation)
    params, start = algorithm.params, algorithm.params["actor"].flat.clone()
    for i in range(6):
        batch = make_batch(i, is_weighted=False)
        if is_weighted:
            batch["weight"] = torch.rand(32, generator=torch.Generator().manual_seed(i))
        update = algorithm.learn(batch, Counts(i))
        metrics, priorities = reference.update(batch)
        assert update.metrics.keys() == metrics.keys()
        for name, value in metrics.items():
            assert update.metrics[name].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-4), name
        torch.testing.assert_close(update.priorities.double(), priorities.detach(), rtol=1e-4, atol=1e-4)
    assert (params["actor"].flat - start).abs().max() > 3e-3
    for own, theirs in (
        (params["actor"].flat, flattened(reference.actor)),
        (params["critic"].flat, flattened(*reference.critics)),
        (params.targets["critic"].flat, flattened(*reference.targets)),
        (params["log_alpha"].flat, reference.log_alpha.detach()),
    ):
        torch.testing.assert_close(own.double(), theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("target_entropy", "wanted"), [(None, -3.0), (-0.5, -0.5)])
def test_target_entropy(target_entropy, wanted):
    algorithm = make(config=dataclasses.replace(CONFIG, target_entropy=target_entropy))
    entropy = algorithm.learn(make_batch(0, is_weighted=False), Counts(0)).metrics["entropy"]
    assert float(algorithm.params["log_alpha"].grad) == pytest.approx(float(entropy) - wanted, rel=1e-5)


def test_the_actor_and_the_temperature_change_in_every_second_update():
    algorithm = make(config=dataclasses.replace(CONFIG, actor_period=2))
    for i in range(4):
        before = {name: algorithm.params[name].flat.clone() for name in algorithm.params.slices}
        metrics = algorithm.learn(make_batch(i, is_weighted=False), Counts(i)).metrics
        changed = [name for name, flat in before.items() if not torch.equal(algorithm.params[name].flat, flat)]
        assert changed == (["actor", "critic", "log_alpha"] if i % 2 == 0 else ["critic"])
        assert ("actor_loss" in metrics) == (i % 2 == 0)
