import pytest
import torch
from continuous import SPEC, doubled, gradient, make, make_batch
from learners import IMAGE
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import ddpg
from drl_cli.types import EnvSpec


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
