import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from confs import algo_config
from nets import layers
from q_batches import q_batch
from torch.nn import functional

from drl_cli.algos.base import Counts
from drl_cli.algos.value import dqn
from drl_cli.algos.value.dqn import Algorithm, Config, Policy
from drl_cli.api import Context
from drl_cli.networks.config import NetworkConfig
from drl_cli.testing import check_algorithm
from drl_cli.types import ActionSpec, Column, EnvSpec

CPU = Context(torch.device("cpu"))
SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 4, "Discrete(4)"))
CONFIG = algo_config(
    "dqn", Config, lr=1e-3, double=False, loss="huber", target_period=1000,
    epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=400,
)  # fmt: skip
NETWORK = NetworkConfig((16, 12), "tanh", "uniform")
SOFT = {"soft_temperature": 0.2, "munchausen": 0.9, "munchausen_floor": -0.25}  # clips some of the terms


def make(seed=0, network=NETWORK, **options):
    return Algorithm(dataclasses.replace(CONFIG, **options), network, SPEC, seed, CPU)


def make_policy(algorithm, seed=0):
    policy = Policy(algorithm.config, algorithm.network, SPEC, seed)
    policy.load(algorithm.policy_params())
    return policy


def observations(rows):
    return np.random.default_rng(0).standard_normal((rows, 5)).astype(np.float32)


def test_epsilon_falls_with_the_environment_steps():
    algorithm = make()
    values = [algorithm.exploration(env_steps)["epsilon"] for env_steps in (0, 100, 200, 400, 10**6)]
    assert values == pytest.approx([0.9, 0.7, 0.5, 0.1, 0.1])
    assert make_policy(algorithm).first == {"epsilon": 0.9}
    assert make(noisy=True).exploration(0) == {"epsilon": 0.0}
    assert make(temperature=0.1).exploration(400) == {"epsilon": 0.1, "temperature": 0.1}


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_priorities_of_policy_and_trainer_are_equal(activation):
    algorithm = make(network=dataclasses.replace(NETWORK, activation=activation))
    batch = q_batch(3, weighted=False)
    priorities = make_policy(algorithm).priorities({name: column.numpy() for name, column in batch.items()})
    np.testing.assert_allclose(priorities, algorithm.learn(batch, Counts()).priorities, rtol=1e-4, atol=1e-6)


def values_of(policy, obs):
    return policy.distribution(obs, None)[0].values


def q_values(x, flat, dueling):
    """Return the Q network's outputs from flat parameters; dueling streams are computed as separate layers."""
    sizes = (5, 16, 24, 5) if dueling else (5, 16, 12, 4)
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weight, bias, flat = flat.split([inputs * outputs, outputs, len(flat) - (inputs + 1) * outputs])
        weight = weight.view(inputs, outputs)
        if layer < 2:
            x = torch.tanh(x @ weight + bias)
    if not dueling:
        return x @ weight + bias
    value = x[:, :12] @ weight[:12, :1] + bias[:1]
    advantage = x[:, 12:] @ weight[12:, 1:] + bias[1:]
    return value + advantage - advantage.mean(1, keepdim=True)


def num_normals(dueling):
    return 5 + 2 * (16 + (24 if dueling else 12)) + (5 if dueling else 4)


def factorised(normals, dueling):
    """Return the noise of all weights, layer by layer."""
    sizes, pieces = (5, 16, 24, 5) if dueling else (5, 16, 12, 4), []
    f = normals.sign() * normals.abs().sqrt()
    for inputs, outputs in pairwise(sizes):
        of_inputs, of_outputs, f = f.split([inputs, outputs, len(f) - inputs - outputs])
        pieces += [torch.outer(of_inputs, of_outputs).flatten(), of_outputs]
    return torch.cat(pieces)


def reference(algorithm, batch):
    """Return metrics, errors and gradients by autograd in float64, with the noise of the algorithm's next update."""
    config = algorithm.config
    params = {name: algorithm.params[name].flat.double().requires_grad_() for name in algorithm.params.slices}
    target = {name: one.flat.double() for name, one in algorithm.params.targets.items()}
    normals = [None] * 3
    if config.noisy:
        generator = torch.Generator()
        generator.set_state(algorithm.state()["generator.noise"])
        normals = torch.randn(3, num_normals(config.dueling), generator=generator).double()

    def q(parts, obs, normal):
        flat = parts["online"]
        if normal is not None:
            flat = flat + parts["sigma"] * factorised(normal, config.dueling)
        return q_values(obs.double(), flat, config.dueling)

    rows = torch.arange(len(batch["action"]))
    with torch.no_grad():
        next_q, reward = q(target, batch["next_obs"], normals[1]), batch["reward"].double()
        chooser = q(params, batch["next_obs"], normals[2]) if config.double else next_q
        if config.soft_temperature:
            pi = functional.softmax(chooser / config.soft_temperature, -1)
            value = (pi * (next_q - config.soft_temperature * pi.log())).sum(-1)
        else:
            value = next_q[rows, chooser.argmax(-1)]
        if config.munchausen:
            log_pi = functional.log_softmax(q(target, batch["obs"], normals[1]) / config.soft_temperature, -1)
            scaled = config.soft_temperature * log_pi[rows, batch["action"]]
            reward = reward + config.munchausen * scaled.clamp(config.munchausen_floor, 0)
        y = reward + batch["discount"] * value
    chosen = q(params, batch["obs"], normals[0])[rows, batch["action"]]
    huber = functional.smooth_l1_loss(chosen, y, reduction="none")
    loss = huber if config.loss == "huber" else (chosen - y) ** 2 / 2
    loss = (batch.get("weight", 1.0) * loss).mean()
    loss.backward()
    metrics = {"q_loss": float(loss.detach()), "q_mean": float(chosen.detach().mean())}
    return metrics, (chosen - y).abs(), torch.cat([p.grad for p in params.values()])


OPTIONS = [
    {},
    {"double": True},
    {"loss": "mse"},
    {"dueling": True},
    {"noisy": True},
    {"noisy": True, "double": True, "dueling": True},
    {"soft_temperature": 0.2},
    {"soft_temperature": 0.2, "double": True},
    SOFT,
    SOFT | {"noisy": True, "dueling": True, "double": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_equal_autograd(options):
    algorithm = make(**options)
    for name, target in algorithm.params.targets.items():  # the two networks differ
        target.flat.copy_(make(seed=1, **options).params[name].flat)
    for i in range(2):  # the second update has new noise, and no weights
        batch = q_batch(i, weighted=i == 0)
        metrics, error, grad = reference(algorithm, batch)
        update = algorithm.learn(batch, Counts(i))
        assert {name: float(value) for name, value in update.metrics.items()} == pytest.approx(metrics, rel=1e-4)
        torch.testing.assert_close(update.priorities.double(), error.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(algorithm.params.grad.double(), grad, rtol=1e-3, atol=1e-6)


def test_all_options_together_keep_the_contract():
    options = ("dueling=true", "noisy=true", "soft_temperature=0.1", "munchausen=0.9", "temperature=0.1", "tau=0.1")
    check_algorithm("dqn", *(f"algo.{one}" for one in options), "network.hidden=[16,16]", "network.layer_norm=true")


def test_sigma_begins_at_half_over_the_root_of_the_inputs():
    algorithm = make(network=dataclasses.replace(NETWORK, layer_norm=True), noisy=True)
    sigmas = layers(algorithm.nets.online, algorithm.params["sigma"].flat)
    assert [float(sigma.unique()) for sigma in sigmas] == pytest.approx(
        [0.5 / 5**0.5] * 2 + [0] * 2 + [0.5 / 4] * 2 + [0] * 2 + [0.5 / 12**0.5] * 2
    )
    for i in range(2):
        algorithm.learn(q_batch(i), Counts(i))
    assert [bool(sigma.any()) for sigma in sigmas] == 2 * [True, True, False, False] + [True, True]


def test_noise_has_mean_0_and_variance_2_over_pi_and_is_an_outer_product():
    """E[f(x) f(y)] = 0, E[|x| |y|] = 2 / pi."""
    algorithm = make(noisy=True)
    draws = [one["online"] for one in algorithm.nets.q.noise(300, algorithm.generator)]
    assert all(torch.linalg.matrix_rank(layers(algorithm.nets.online, one)[0]) == 1 for one in draws[:30])
    draws = torch.stack(draws)[:, : 5 * 16]
    assert abs(float(draws.mean())) < 0.03
    assert float(draws.square().mean()) == pytest.approx(2 / np.pi, rel=0.05)


def test_a_noisy_policy_draws_noise_in_every_step_and_is_greedy_without():
    algorithm = make(noisy=True)
    algorithm.params["sigma"].flat.mul_(3)
    policy, obs = make_policy(algorithm), observations(200)
    first, second = (policy.act(obs)["action"] for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(policy.greedy(obs), policy.greedy(obs))
    mean = q_values(torch.from_numpy(obs), algorithm.params["online"].flat, False)
    assert np.array_equal(policy.greedy(obs), mean.argmax(-1))
    normals = torch.from_numpy(np.random.default_rng(7).standard_normal(num_normals(False), np.float32))
    noisy = algorithm.params["online"].flat + algorithm.params["sigma"].flat * factorised(normals, False)
    again = make_policy(algorithm, seed=7)
    expected = q_values(torch.from_numpy(obs), noisy, False).argmax(-1)
    assert np.array_equal(again.act(obs)["action"], expected)
    in_torch = dqn.policy(algorithm.nets, torch.from_numpy(obs), {"rng": np.random.default_rng(7)})
    assert torch.equal(in_torch.mode, expected)


def test_boltzmann_exploration_samples_from_the_softmax():
    policy, obs = make_policy(make(temperature=0.1)), np.zeros((40_000, 5), np.float32)
    policy.explore({"epsilon": 0.0})
    share = np.bincount(policy.act(obs)["action"], minlength=4) / len(obs)
    expected = torch.softmax(torch.from_numpy(values_of(policy, obs[:1])[0]) / 0.1, -1)
    np.testing.assert_allclose(share, expected, atol=0.01)
    policy.explore({"epsilon": 0.0, "temperature": np.repeat([1e-3, 100.0], 20_000)})  # one for each environment
    greedy, uniform = np.split(policy.act(obs)["action"], 2)
    assert len(np.unique(greedy)) == 1
    np.testing.assert_allclose(np.bincount(uniform) / 20_000, 0.25, atol=0.02)


def test_a_target_network_moves_by_tau_every_period():
    algorithm = make(tau=0.1, target_period=2)
    target = algorithm.params.targets["online"].flat
    before, moved = target.clone(), []
    for i in range(2):
        algorithm.learn(q_batch(i), Counts(i))
        moved.append(target.clone())
    assert torch.equal(moved[0], before)
    torch.testing.assert_close(moved[1], before + 0.1 * (algorithm.params["online"].flat - before))
