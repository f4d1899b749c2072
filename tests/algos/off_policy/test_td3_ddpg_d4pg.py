import pytest
import torch
from continuous import SPEC, doubled, gradient, make, make_batch
from learners import IMAGE
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import d4pg, ddpg, td3, xqc
from drl_cli.errors import Refused
from drl_cli.types import EnvSpec


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


def test_an_update_equals_an_independent_implementation():
    """Both gradients are those of the parameters before the step (equations 5 and 6 of the paper)."""
    algorithm, batch = make(ddpg, tau=0.1), make_batch()
    params, targets = algorithm.params, algorithm.params.targets
    actor, slow = (sequential(part.flat, (5, 16, 12, 3), "tanh") for part in (params["actor"], targets["actor"]))
    critic, slow_critic = (
        sequential(part.flat, (8, 16, 12, 1), "tanh") for part in (params["critic"], targets["critic"])
    )
    before = {name: target.flat.clone() for name, target in targets.items()}
    obs, action, reward, next_obs, discount, weight = doubled(batch)
    with torch.no_grad():
        next_q = slow_critic(torch.cat([next_obs, slow(next_obs).tanh()], 1)).squeeze(1)
    error = critic(torch.cat([obs, action], 1)).squeeze(1) - reward - discount * next_q
    critic_loss = (weight * error**2).mean()
    critic_loss.backward()
    expected = gradient(critic)
    actor_loss = -critic(torch.cat([obs, actor(obs).tanh()], 1)).mean()
    actor_loss.backward()
    update = algorithm.learn(batch, Counts(0))
    for name, value in {"critic_loss": critic_loss, "actor_loss": actor_loss}.items():
        assert float(update.metrics[name]) == pytest.approx(float(value.detach()), rel=1e-5)
    torch.testing.assert_close(update.priorities.double(), error.detach().abs(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(params["critic"].grad.double(), expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)
    for name, target in targets.items():
        torch.testing.assert_close(target.flat, before[name] + 0.1 * (params[name].flat - before[name]))


def test_actor_and_critic_have_their_own_learning_rates():
    spec = EnvSpec("x", IMAGE, SPEC.action)
    rates = make(ddpg, lr=1e-3, critic_lr=2e-3, spec=spec).optimizer.lrs
    assert rates == {"torso": 2e-3, "actor": 1e-3, "critic": 2e-3}  # the critic's loss trains the torso


ATOMS, V_MIN, V_MAX = 7, -2.0, 3.0
OPTIONS = {"tau": 0.1, "atoms": ATOMS, "v_min": V_MIN, "v_max": V_MAX}


def projected(probs, reward, discount, cost=0.0):
    """Return the projection of one row's targets, less `cost`, atom by atom (algorithm 1 of C51's paper)."""
    width, out = (V_MAX - V_MIN) / (ATOMS - 1), [0.0] * ATOMS
    for i, prob in enumerate(probs):
        value = min(max(reward + discount * (V_MIN + i * width - cost), V_MIN), V_MAX)
        place = (value - V_MIN) / width
        below = min(int(place), ATOMS - 2)
        out[below] += prob * (below + 1 - place)
        out[below + 1] += prob * (place - below)
    return out


def test_an_update_of_d4pg_equals_an_independent_implementation():
    algorithm, batch = make(d4pg, **OPTIONS), make_batch()
    params, targets = algorithm.params, algorithm.params.targets
    actor, slow = (sequential(part.flat, (5, 16, 12, 3), "tanh") for part in (params["actor"], targets["actor"]))
    critic, slow_critic = (
        sequential(part.flat, (8, 16, 12, ATOMS), "tanh") for part in (params["critic"], targets["critic"])
    )
    before = {name: target.flat.clone() for name, target in targets.items()}
    obs, action, reward, next_obs, discount, weight = doubled(batch)
    with torch.no_grad():
        probs = slow_critic(torch.cat([next_obs, slow(next_obs).tanh()], 1)).softmax(1)
    rows = zip(probs.tolist(), reward.tolist(), discount.tolist(), strict=True)
    target = torch.tensor([projected(*row) for row in rows], dtype=torch.float64)
    log_probs = critic(torch.cat([obs, action], 1)).log_softmax(1)
    critic_loss = -(weight * (target * log_probs).sum(1)).mean()
    critic_loss.backward()
    expected = gradient(critic)
    values = torch.linspace(V_MIN, V_MAX, ATOMS, dtype=torch.float64)
    actor_loss = -(critic(torch.cat([obs, actor(obs).tanh()], 1)).softmax(1) * values).sum(1).mean()
    actor_loss.backward()
    update = algorithm.learn(batch, Counts(0))
    for name, value in {"critic_loss": critic_loss, "actor_loss": actor_loss}.items():
        assert float(update.metrics[name]) == pytest.approx(float(value.detach()), rel=1e-4)
    divergence = (torch.xlogy(target, target) - target * log_probs.detach()).sum(1)
    torch.testing.assert_close(update.priorities.double(), divergence, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(params["critic"].grad.double(), expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(params["actor"].grad.double(), gradient(actor), rtol=1e-3, atol=1e-6)
    for name, one in targets.items():
        torch.testing.assert_close(one.flat, before[name] + 0.1 * (params[name].flat - before[name]))


@pytest.mark.parametrize("module", [d4pg, xqc])
@pytest.mark.parametrize("options", [{"atoms": 1}, {"v_min": 3.0}])
def test_an_empty_support_is_refused(module, options):
    with pytest.raises(Refused, match=r"algo.atoms=.* has to be at least 2, and algo.v_min=.* below"):
        make(module, **OPTIONS | options)
