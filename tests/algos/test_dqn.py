import dataclasses

import numpy as np
import pytest
import torch
from confs import algo_config
from q_batches import q_batch
from references import flattened, sequential
from torch.nn import functional

from drl_cli.algos.base import Counts
from drl_cli.algos.value.dqn import Algorithm, Config, Policy
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import ActionSpec, Column, EnvSpec

CPU = Context(torch.device("cpu"))
SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 4, "Discrete(4)"))
CONFIG = algo_config(
    "dqn", Config, lr=1e-3, double=True, loss="huber", target_period=3,
    epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=400,
)  # fmt: skip


def make(activation="tanh", seed=0, spec=SPEC, **options):
    config = dataclasses.replace(CONFIG, **options)
    return Algorithm(config, NetworkConfig((16, 12), activation, "uniform"), spec, seed, CPU)


def make_policy(seed=0, activation="tanh"):
    policy = Policy(CONFIG, NetworkConfig((16, 12), activation, "uniform"), SPEC, seed)
    policy.load(make(activation).policy_params())
    return policy


def make_batch(seed, weighted=False, rows=32):
    """Rewards of standard deviation 2, so that errors lie on both sides of huber's knees."""
    return q_batch(seed, rows, weighted=weighted)


class Reference:
    """DQN as in the papers, on float64 torch.nn modules, starting from an algorithm's parameters."""

    def __init__(self, algorithm, activation):
        self.config, self.updates = algorithm.config, 0
        self.online, self.target = (
            sequential(part.flat, (5, 16, 12, 4), activation)
            for part in (algorithm.params["online"], algorithm.params.targets["online"])
        )
        self.optimizer = torch.optim.Adam(self.online.parameters(), self.config.lr)

    def update(self, batch):
        rows = torch.arange(len(batch["action"]))
        with torch.no_grad():
            next_q = self.target(batch["next_obs"].double())
            chooser = self.online(batch["next_obs"].double()) if self.config.double else next_q
            target = batch["reward"] + batch["discount"] * next_q[rows, chooser.argmax(1)]
        q = self.online(batch["obs"].double())[rows, batch["action"]]
        if self.config.loss == "huber":
            loss = functional.smooth_l1_loss(q, target, reduction="none")
        else:
            loss = (q - target) ** 2 / 2
        loss = (batch.get("weight", torch.ones(len(rows))) * loss).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.config.target_period == 0:
            self.target.load_state_dict(self.online.state_dict())
        return {"q_loss": loss, "q_mean": q.mean()}, (q - target).abs()


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize("weighted", [True, False])
def test_updates_equal_an_independent_implementation(activation, double, loss, weighted):
    algorithm = make(activation, double=double, loss=loss)
    other = make(activation, seed=1).params["online"].flat  # the two networks choose different actions
    algorithm.params.targets["online"].flat.copy_(other)
    reference = Reference(algorithm, activation)
    start = algorithm.params["online"].flat.clone()
    for i in range(7):
        batch = make_batch(i, weighted)
        update = algorithm.learn(batch, Counts(i))
        metrics, priorities = reference.update(batch)
        assert update.metrics.keys() == metrics.keys()
        for name, value in metrics.items():
            assert update.metrics[name].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-4), name
        torch.testing.assert_close(update.priorities.double(), priorities.detach(), rtol=1e-4, atol=1e-4)
        own, target = algorithm.params["online"], algorithm.params.targets["online"]
        for part, theirs in ((own, reference.online), (target, reference.target)):
            torch.testing.assert_close(part.flat.double(), flattened(theirs), rtol=0, atol=1e-5)
    assert (algorithm.params["online"].flat - start).abs().max() > 3e-3


def test_target_is_a_copy_every_target_period_updates_across_a_resume():
    algorithm = make(target_period=4)
    copies = []
    for i in range(9):
        algorithm.learn(make_batch(i), Counts(i))
        copies.append(torch.equal(algorithm.params.targets["online"].flat, algorithm.params["online"].flat))
        resumed = make(seed=9, target_period=4)
        resumed.load_state(algorithm.state())
        algorithm = resumed
    assert copies == [(i + 1) % 4 == 0 for i in range(9)]


def test_epsilon_falls_with_the_environment_steps():
    algorithm = make()
    values = [algorithm.exploration(env_steps)["epsilon"] for env_steps in (0, 100, 200, 400, 10**6)]
    assert values == pytest.approx([0.9, 0.7, 0.5, 0.1, 0.1])
    assert make_policy().epsilon == 0.9


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_random_actions(epsilon):
    policy, obs = make_policy(seed=3), np.zeros((20_000, 5), np.float32)
    policy.explore({"epsilon": epsilon})
    action, greedy = policy.act(obs)["action"], policy.greedy(obs)
    counts = np.bincount(action, minlength=4) / len(obs)
    expected = np.full(4, epsilon / 4)
    expected[greedy[0]] += 1 - epsilon
    np.testing.assert_allclose(counts, expected, atol=0.02 if epsilon else 0)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_priorities_of_policy_and_trainer_are_equal(double, activation):
    algorithm, batch = make(activation, double=double), make_batch(3)
    rows = {name: column.numpy() for name, column in batch.items()}
    np.testing.assert_allclose(
        make_policy(0, activation).priorities(rows), algorithm.learn(batch, Counts()).priorities, rtol=1e-4, atol=1e-6
    )
