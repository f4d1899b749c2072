"""TD3: updates against an independent implementation, the delayed actor, and broken copies that must fail."""

import pytest
import torch
from continuous import changed, doubled, gradient, make, make_batch
from references import flattened, sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import td3
from drl_cli.testing import check_learning


def updates_equal_an_independent_implementation(module):
    """The gradients of the critics and, with the critics after their step, of the actor (algorithm 1 of the paper)."""
    algorithm = make(module, target_noise=0.6, noise_clip=0.5, lr=1e-2, tau=0.1)
    batch, params, targets = make_batch(), algorithm.params, algorithm.params.targets
    noise = torch.Generator()
    noise.set_state(algorithm.state()["generator.noise"])
    actor, slow = (sequential(part.flat, (5, 16, 12, 3), "tanh") for part in (params["actor"], targets["actor"]))
    critics, slow_critics = (
        [sequential(flat, (8, 16, 12, 1), "tanh") for flat in part.flat.chunk(2)]
        for part in (params["critic"], targets["critic"])
    )
    before = {name: target.flat.clone() for name, target in targets.items()}
    obs, action, reward, next_obs, discount, weight = (
        doubled(batch)[name] for name in ("obs", "action", "reward", "next_obs", "discount", "weight")
    )
    with torch.no_grad():
        smoothing = (0.6 * torch.randn(32, 3, generator=noise).double()).clamp(-0.5, 0.5)
        next_action = (slow(next_obs).tanh() + smoothing).clamp(-1, 1)
        x = torch.cat([next_obs, next_action], 1)
        target = reward + discount * torch.minimum(slow_critics[0](x), slow_critics[1](x)).squeeze(1)
    q = [critic(torch.cat([obs, action], 1)).squeeze(1) for critic in critics]
    critic_loss = sum((weight * (one - target) ** 2).mean() for one in q)
    critic_loss.backward()
    update = algorithm.learn(batch, Counts(0))
    assert float(update.metrics["critic_loss"]) == pytest.approx(float(critic_loss.detach()), rel=1e-5)
    error = sum((one - target).abs() for one in q).detach() / 2
    torch.testing.assert_close(update.priorities.double(), error, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(params["critic"].grad.double(), gradient(*critics), rtol=1e-3, atol=1e-6)
    first = sequential(params["critic"].flat.chunk(2)[0], (8, 16, 12, 1), "tanh")
    actor_loss = -first(torch.cat([obs, actor(obs).tanh()], 1)).mean()
    actor_loss.backward()
    assert float(update.metrics["actor_loss"]) == pytest.approx(float(actor_loss.detach()), rel=1e-5)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)
    for name, target in targets.items():
        torch.testing.assert_close(target.flat, before[name] + 0.1 * (params[name].flat - before[name]))


def the_actor_and_the_targets_change_in_every_second_update(module):
    algorithm = make(module, actor_period=2)
    for i in range(4):
        before = {name: algorithm.params[name].flat.clone() for name in ("actor", "critic")}
        slow = {name: target.flat.clone() for name, target in algorithm.params.targets.items()}
        update = algorithm.learn(make_batch(i), Counts(i))
        changes = {name: not torch.equal(algorithm.params[name].flat, flat) for name, flat in before.items()}
        moved = {name: not torch.equal(algorithm.params.targets[name].flat, flat) for name, flat in slow.items()}
        assert changes == {"actor": i % 2 == 0, "critic": True}
        assert moved == {"actor": i % 2 == 0, "critic": i % 2 == 0}
        assert ("actor_loss" in update.metrics) == (i % 2 == 0)


PROBES = (updates_equal_an_independent_implementation, the_actor_and_the_targets_change_in_every_second_update)
BROKEN = {
    "minimum over the wrong axis": (0, ".squeeze(-1).amin(0)", ".amin(-1)"),
    "mean in place of the minimum": (0, ".amin(0)", ".mean(0)"),
    "target noise not clipped": (0, ".clamp(-config.noise_clip, config.noise_clip)", ""),
    "target actions not clipped": (0, "smoothing).clamp(-1.0, 1.0)", "smoothing)"),
    "target actions of the online actor": (0, "nets.target.actor", "nets.actor"),
    "target values of the online critics": (0, "nets.target.critic", "nets.critic"),
    "gradients through the second critic": (0, ", first=1).squeeze(-1)", ").squeeze(-1).mean(0)"),
    "the actor's sign": (0, "loss = -mean", "loss = mean"),
    "the discount ignored": (0, 'rows["discount"] * ', ""),
    "importance weights ignored": (0, ', rows.get("weight")', ""),
    "the delayed actor updated every time": (1, "self.config.actor_period == 0", "1 == 0"),
    "the targets never updated": (1, "self.params.follow(self.config.tau)", "pass"),
}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_the_algorithm_passes(probe):
    probe(td3)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_copy_does_not(fault):
    probe, old, new = BROKEN[fault]
    with pytest.raises((AssertionError, ValueError)):
        PROBES[probe](changed("td3", (old, new)))


def test_it_learns():
    check_learning("td3", "algo.lr=3e-3", "algo.tau=0.05", "algo.gamma=0.9", "algo.noise=0.3", updates=300)


def test_references_have_the_order_of_the_parameters():
    algorithm = make(td3)
    network = sequential(algorithm.params["actor"].flat, (5, 16, 12, 3), "tanh")
    torch.testing.assert_close(flattened(network).float(), algorithm.params["actor"].flat)
