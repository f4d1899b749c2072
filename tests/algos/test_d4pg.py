import pytest
import torch
from continuous import doubled, gradient, make, make_batch
from references import sequential

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy import d4pg, xqc
from drl_cli.errors import Refused

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


def test_an_update_equals_an_independent_implementation():
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
