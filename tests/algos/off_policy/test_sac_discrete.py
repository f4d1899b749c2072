import dataclasses
import math

import pytest
import torch
from confs import algo_config
from q_batches import q_batch
from torch.distributions import Categorical

from drl_cli.algos.base import Counts
from drl_cli.algos.off_policy.sac_discrete import Algorithm, Config
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec

NETWORK = NetworkConfig((12,), "tanh", "uniform")
SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 4, "Discrete(4)"))


def make(seed=0, spec=SPEC, **options):
    config = algo_config("sac_discrete", Config)
    return Algorithm(dataclasses.replace(config, **options), NETWORK, spec, seed, Context(torch.device("cpu")))


def network(flat, obs):
    """`[N, 4]` of one network from its flat parameters."""
    w1, b1, w2, b2 = flat.split([60, 12, 48, 4])
    return torch.tanh(obs.double() @ w1.view(5, 12) + b1) @ w2.view(12, 4) + b2


def test_gradients_equal_an_independent_implementation():
    algorithm, rows = make(initial_alpha=0.3, target_entropy=0.4), torch.arange(32)
    algorithm.params.targets["critic"].flat.copy_(make(seed=1).params["critic"].flat)
    batch = q_batch()
    actor, critic, log_alpha = (
        algorithm.params[name].flat.double().requires_grad_() for name in ("actor", "critic", "log_alpha")
    )
    alpha, halves = log_alpha.exp().detach(), critic.chunk(2)
    with torch.no_grad():
        theirs = algorithm.params.targets["critic"].flat.double().chunk(2)
        policy = Categorical(logits=network(actor, batch["next_obs"]))
        least = torch.stack([network(one, batch["next_obs"]) for one in theirs]).amin(0)
        soft = (policy.probs * least).sum(-1) + alpha * policy.entropy()
        target = batch["reward"] + batch["discount"] * soft
    q = [network(one, batch["obs"]) for one in halves]
    chosen = [one[rows, batch["action"]] for one in q]
    critic_loss = sum((batch["weight"] * (one - target) ** 2).mean() for one in chosen)
    policy = Categorical(logits=network(actor, batch["obs"]))
    least = torch.stack(q).amin(0).detach()
    actor_loss = -((policy.probs * least).sum(-1) + alpha * policy.entropy()).mean()
    temperature_loss = log_alpha * (policy.entropy().mean().detach() - 0.4 * math.log(4))
    (critic_loss + actor_loss + temperature_loss).sum().backward()
    update = algorithm.learn(batch, Counts())
    expected = {"critic_loss": critic_loss, "actor_loss": actor_loss, "entropy": policy.entropy().mean()}
    for name, value in expected.items():
        assert float(update.metrics[name]) == pytest.approx(float(value.detach()), rel=1e-5), name
    error = sum((one - target).abs() for one in chosen).detach() / 2
    torch.testing.assert_close(update.priorities.double(), error, rtol=1e-4, atol=1e-5)
    grad = torch.cat([actor.grad, critic.grad, log_alpha.grad])
    torch.testing.assert_close(algorithm.params.grad.double(), grad, rtol=1e-3, atol=1e-6)


def test_the_target_entropy_counts_legal_actions():
    algorithm = make(target_entropy=0.5)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True], [False, True, False, False]])
    torch.testing.assert_close(algorithm.entropy_target(mask), 0.5 * torch.tensor([math.log(2), math.log(4), 0.0]))
    assert algorithm.entropy_target(None) == pytest.approx(0.5 * math.log(4))


@pytest.mark.slow
def test_it_keeps_the_contract_with_every_layer():
    check_algorithm("sac_discrete", "network.hidden=[16]", "network.layer_norm=true", "network.dropout=0.1")
