"""C51: whole gradients against autograd, the policy's means and priorities, learning, refusals."""

import dataclasses

import numpy as np
import pytest
import torch
from confs import algo_node
from q_batches import q_batch
from torch.nn import functional

from drl_cli.algos import c51
from drl_cli.algos.base import Counts
from drl_cli.cli.settings import convert
from drl_cli.losses.distributional import project
from drl_cli.networks.config import NetworkConfig
from drl_cli.testing import check_algorithm, check_learning
from drl_cli.types import ActionSpec, Column, EnvSpec
from drl_cli.utils.group import Context
from drl_cli.utils.params import Refused

CPU = Context(torch.device("cpu"))
SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 3, "Discrete(3)"))
NETWORK = NetworkConfig((12,), "tanh", "uniform")
SMALL = {"atoms": 7, "v_min": -3.0, "v_max": 3.0}
SUPPORT = torch.linspace(-3, 3, 7)


def make(seed=0, **options):
    config = convert(algo_node("c51"), c51.Config, "algo", [], c51.Config)
    config = dataclasses.replace(config, **SMALL | options)
    return c51.Algorithm(config, NETWORK, SPEC, seed, CPU)


def make_policy(algorithm):
    policy = c51.Policy(algorithm.config, NETWORK, SPEC, 0)
    policy.load(algorithm.policy_params())
    return policy


def make_batch(seed=0, rows=32):
    return q_batch(seed, rows, choices=3, gamma=0.9, scale=1.0)


def network(flat, obs, atoms, dueling):
    """`[N, 3, atoms]`, from flat parameters; streams are layers of their own."""
    hidden, outputs = (24, 4 * atoms) if dueling else (12, 3 * atoms)
    weights = flat.split([5 * hidden, hidden, hidden * outputs, outputs])
    h = torch.tanh(obs @ weights[0].view(5, hidden) + weights[1])
    weight, bias = weights[2].view(hidden, outputs), weights[3]
    if not dueling:
        return (h @ weight + bias).view(-1, 3, atoms)
    value = (h[:, :12] @ weight[:12, :atoms] + bias[:atoms]).view(-1, 1, atoms)
    advantage = (h[:, 12:] @ weight[12:, atoms:] + bias[atoms:]).view(-1, 3, atoms)
    return value + advantage - advantage.mean(1, keepdim=True)


@pytest.mark.parametrize(
    "options",
    [
        {"double": False},
        {"double": True, "dueling": True},
        {"double": False, "soft_temperature": 0.3, "munchausen": 0.9},
    ],
    ids=str,
)
def test_gradients_equal_autograd(options):
    algorithm, rows = make(**options), torch.arange(32)
    algorithm.target.mlp.flat.copy_(make(seed=1, **options).online.mlp.flat)
    atoms, batch = algorithm.config.outputs, make_batch()
    online = algorithm.params.flat.clone().requires_grad_()

    def read(flat, obs):
        return network(flat, obs, atoms, algorithm.config.dueling)

    def mean(out):
        return out.softmax(-1) @ SUPPORT

    with torch.no_grad():
        target, reward = read(algorithm.target.mlp.flat, batch["next_obs"]), batch["reward"]
        law = target.softmax(-1)
        chooser = mean(read(online, batch["next_obs"])) if options["double"] else mean(target)
        if "munchausen" in options:
            pi = functional.softmax(chooser / 0.3, -1)
            log_pi = functional.log_softmax(mean(read(algorithm.target.mlp.flat, batch["obs"])) / 0.3, -1)
            reward = reward + 0.9 * (0.3 * log_pi[rows, batch["action"]]).clamp(-1, 0)
            reward = reward - batch["discount"] * 0.3 * (pi * pi.log()).sum(-1)
            law = (pi[:, :, None] * law).sum(1)
        else:
            law = law[rows, chooser.argmax(-1)]
    out = read(online, batch["obs"])[rows, batch["action"]]
    target = project(law, reward, batch["discount"], SUPPORT)
    loss = functional.cross_entropy(out, target, reduction="none")
    error = functional.kl_div(out.log_softmax(-1), target, reduction="none").sum(-1)
    loss = (batch["weight"] * loss).mean()
    loss.backward()
    update = algorithm.learn(batch, Counts())
    assert float(update.metrics["q_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(update.priorities, error.detach(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(algorithm.params.grad, online.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dueling", [True, False])
def test_the_policy_acts_by_the_means_and_rates_rows_as_the_learner_does(dueling):
    algorithm, batch = make(dueling=dueling, double=False), make_batch()
    policy = make_policy(algorithm)
    with torch.no_grad():
        out = algorithm.online.forward(batch["obs"])[0]
        means = algorithm.expected(algorithm.distribution(out))
    np.testing.assert_allclose(policy.forward(batch["obs"].numpy(), None)[0], means, rtol=1e-4, atol=1e-5)
    assert np.array_equal(policy.greedy(batch["obs"].numpy()), means.argmax(-1))
    rows = {name: column.numpy() for name, column in batch.items()}
    expected = algorithm.learn(batch, Counts()).priorities
    np.testing.assert_allclose(policy.priorities(rows), expected, rtol=1e-3, atol=1e-5)


def test_all_options_together_keep_the_contract():
    options = ("dueling=true", "noisy=true", "soft_temperature=0.1", "munchausen=0.9", "tau=0.1")
    check_algorithm("c51", *(f"algo.{one}" for one in options), "network.hidden=[16,16]")


FAST = ("algo.gamma=0.9", "algo.lr=3e-3", "algo.target_period=20", "algo.epsilon_end=0.1", "algo.epsilon_steps=800")


@pytest.mark.parametrize("options", [(), ("algo.dueling=true", "algo.noisy=true")], ids=["plain", "dueling noisy"])
def test_it_learns(options):
    check_learning("c51", *FAST, "algo.v_min=-1", "algo.v_max=2", *options, updates=250)


def test_a_support_has_to_begin_below_its_end():
    with pytest.raises(Refused, match=r"algo\.v_min=5 has to be below algo\.v_max=3"):
        make(v_min=5.0)
