import pytest
import torch
from continuous import doubled, gradient, make, make_batch
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import td3


def test_updates_equal_an_independent_implementation():
    """The gradients of the critics and, with the critics after their step, of the actor (algorithm 1 of the paper)."""
    algorithm = make(td3, target_noise=0.6, noise_clip=0.5, lr=1e-2, tau=0.1)
    batch, params, targets = make_batch(), algorithm.params, algorithm.params.targets
    noise = torch.Generator()
    noise.set_state(algorithm.state()["generator.noise"])
    actor, slow = (sequential(part.flat, (5, 16, 12, 3), "tanh") for part in (params["actor"], targets["actor"]))
    critics, slow_critics = (
        [sequential(flat, (8, 16, 12, 1), "tanh") for flat in part.flat.chunk(2)]
        for part in (params["critic"], targets["critic"])
    )
    before = {name: target.flat.clone() for name, target in targets.items()}
    obs, action, reward, next_obs, discount, weight = doubled(batch)
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


def test_the_actor_and_the_targets_change_in_every_second_update():
    algorithm = make(td3, actor_period=2)
    for i in range(4):
        before = {name: algorithm.params[name].flat.clone() for name in ("actor", "critic")}
        slow = {name: target.flat.clone() for name, target in algorithm.params.targets.items()}
        update = algorithm.learn(make_batch(i), Counts(i))
        changes = {name: not torch.equal(algorithm.params[name].flat, flat) for name, flat in before.items()}
        moved = {name: not torch.equal(algorithm.params.targets[name].flat, flat) for name, flat in slow.items()}
        assert changes == {"actor": i % 2 == 0, "critic": True}
        assert moved == {"actor": i % 2 == 0, "critic": i % 2 == 0}
        assert ("actor_loss" in update.metrics) == (i % 2 == 0)
