"""MuZero's update against a slow reference in float64, written from the paper: one window and one step at a time."""

import math

import pytest
import torch
from continuous import NETWORK, gradient, make
from references import lstm_step, sequential, value_prefix_of

from drl_cli.algos.base import Counts
from drl_cli.algos.model_based import gumbel_muzero
from drl_cli.algos.model_based._shared import as_windows, scalars, unroll_targets
from drl_cli.types import ActionSpec, Column, EnvSpec

ROWS, LENGTH, K, N, SIZE, GAMMA, ACTIONS = 48, 7, 3, 2, 4, 0.9, 3
SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", ACTIONS, "Discrete(3)"))
OPTIONS = {"support": SIZE, "unroll_steps": K, "n_step": N, "gamma": GAMMA, "value_weight": 0.6, "fresh_values": False}
BINS, WIDTH = 2 * SIZE + 1, NETWORK.hidden[-1]
UNIFORM = torch.rand(ROWS, K, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def known_actions(monkeypatch):
    """The random numbers after the end of an episode are UNIFORM."""
    monkeypatch.setattr("drl_cli.optim.context.Context.rand", lambda self, rows, size, generator: UNIFORM[:rows, :size])


def windows(length=LENGTH, rows=ROWS):
    """A batch of windows: full ones, and some that end by a termination, a truncation or at the newest row."""
    rng = torch.Generator().manual_seed(0)
    steps = torch.randint(1, length + 4, (rows,), generator=rng).clamp(max=length)
    step = torch.arange(length)
    valid = step < steps[:, None]
    terminated = (step == steps[:, None] - 1) & (torch.rand(rows, 1, generator=rng) < 0.5)
    return {
        "obs": torch.randn(rows, length, 5, generator=rng),
        "action": torch.randint(ACTIONS, (rows, length), generator=rng),
        "reward": 3 * torch.randn(rows, length, generator=rng),
        "discount": torch.where(terminated, 0.0, GAMMA),
        "terminated": terminated,
        "valid": valid,
        "root_value": 5 * torch.randn(rows, length, generator=rng),
        "policy": torch.rand(rows, length, ACTIONS, generator=rng).softmax(-1),
        "is_random": torch.rand(rows, length, generator=rng) < 0.2,
        "weight": torch.rand(rows, generator=rng) + 0.5,
    }


def reference_targets(row):
    """Return, for one window, [(value or None, policy or None)] of K + 1 steps and [reward or None] of K actions."""
    length = int(row["valid"].sum())
    ends, values = bool(row["terminated"][length - 1]), []
    for t in range(K + 1):
        if t >= length:
            values.append((0.0 if ends else None, None))
            continue
        policy = None if row["is_random"][t] else row["policy"][t].double()
        total, factor, i, value = 0.0, 1.0, t, None
        while True:
            if i == t + N or (i == length - 1 and not ends):  # z = u_1 + ... + gamma^n v_{t+n}, section "Training"
                if not row["is_random"][i]:
                    value = total + factor * float(row["root_value"][i])
                break
            total, factor, i = total + factor * float(row["reward"][i]), factor * GAMMA, i + 1
            if i == length:  # terminated
                value = total
                break
        values.append((value, policy))
    return values, [float(row["reward"][t]) if t < length else 0.0 if ends else None for t in range(K)]


def two_hot(x):
    """The target distribution of a scalar (appendix F)."""
    h = math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x
    h = max(-SIZE, min(SIZE, h))
    below, probs = min(math.floor(h), SIZE - 1), torch.zeros(BINS, dtype=torch.float64)
    probs[below + SIZE], probs[below + 1 + SIZE] = below + 1 - h, h - below
    return probs


def cross_entropy(logits, probs):
    return -(probs * logits.log_softmax(-1)).sum()


def latent(x):
    return (x - x.min()) / (x.max() - x.min() + 1e-5)


def rows_of(batch):
    return [{name: column[i] for name, column in batch.items()} for i in range(len(batch["valid"]))]


def cosine(x, y):
    return (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()


@pytest.mark.parametrize(("consistency", "prefix"), [(0.0, False), (0.7, False), (0.0, True)])
def test_an_update_equals_a_reference_from_the_paper(known_actions, consistency, prefix):
    """EfficientZero: the observation's side of the consistency loss gets no gradient; a value prefix is a sum."""
    batch = windows()
    algorithm = make(gumbel_muzero, spec=SPEC, **OPTIONS, consistency=consistency, value_prefix=prefix)
    params = algorithm.params
    with torch.no_grad():
        params["prediction"].flat.mul_(20.0)  # so that predictions differ from 0
        if prefix:
            params["value_prefix"].flat.mul_(3.0)
    h = sequential(params["representation"].flat, (5, *NETWORK.hidden, WIDTH), "tanh")
    g = sequential(params["dynamics"].flat, (WIDTH + ACTIONS, WIDTH, WIDTH + (0 if prefix else BINS)), "tanh")
    f = sequential(params["prediction"].flat, (WIDTH, WIDTH, ACTIONS + BINS), "tanh")
    networks = {"representation": h, "dynamics": g, "prediction": f}
    if consistency:
        heads = ("projection", "predictor")
        networks |= {name: sequential(params[name].flat, (WIDTH, WIDTH, WIDTH), "tanh") for name in heads}
    if prefix:
        lstm, networks["value_prefix"] = value_prefix_of(params["value_prefix"].flat, WIDTH, BINS)
    loss, errors = 0.0, []
    for i, row in enumerate(rows_of(batch)):
        values, rewards = reference_targets(row)
        z = latent(h(row["obs"][0].double()))
        memory, rewarded = torch.zeros(2, WIDTH, dtype=torch.float64), 0.0
        for k in range(K + 1):
            policy, value = f(z).split((ACTIONS, BINS))
            share = row["weight"].double() / ROWS * (1.0 if k == 0 else 1 / K)
            target, searched = values[k]
            if target is not None:
                loss = loss + share * 0.6 * cross_entropy(value, two_hot(target))
            if searched is not None:
                loss = loss + share * cross_entropy(policy, searched)
            if k == 0:
                mean = (value.softmax(-1) * torch.arange(-SIZE, SIZE + 1)).sum()
                root = inverse(float(mean.detach()))
                errors.append(0.0 if target is None else abs(root - target))
            if consistency and 0 < k < int(row["valid"].sum()):
                seen = networks["projection"](latent(h(row["obs"][k].double()))).detach()
                found = networks["predictor"](networks["projection"](z))
                loss = loss - row["weight"].double() / ROWS / K * consistency * cosine(found, seen)
            if k == K:
                break
            past_end = k >= int(row["valid"].sum())
            action = int(UNIFORM[i, k] * ACTIONS) if past_end else int(row["action"][k])
            entering = z * 1.0
            entering.register_hook(lambda gradient: gradient / 2)
            out = g(torch.cat([entering, torch.eye(ACTIONS).double()[action]]))
            z, reward = latent(entering + out[:WIDTH]), out[WIDTH:]
            if prefix:
                memory = lstm_step(lstm, z, memory)
                reward = networks["value_prefix"](memory[0])
            if rewards[k] is not None:
                rewarded = rewards[k] + (rewarded if prefix else 0.0)
                loss = loss + row["weight"].double() / ROWS / K * cross_entropy(reward, two_hot(rewarded))
    loss.backward()
    update = algorithm.learn(batch, Counts(1))
    assert float(update.metrics["model_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert params.slices.keys() == networks.keys()
    for name, network in networks.items():
        expected = gradient(network)
        if name == "value_prefix":
            expected = torch.cat([*(weight.grad.flatten() for weight in lstm), expected])
        torch.testing.assert_close(params[name].grad.double(), expected, rtol=1e-3, atol=1e-6, msg=name)
    torch.testing.assert_close(
        update.priorities, torch.tensor(errors)[:, None].expand(-1, LENGTH), rtol=1e-4, atol=1e-5
    )


def test_the_heads_of_the_consistency_loss_do_not_travel_to_workers():
    with_heads, without = (make(gumbel_muzero, spec=SPEC, **OPTIONS, consistency=c) for c in (2.0, 0.0))
    assert with_heads.policy_params().shape == without.policy_params().shape
    assert {"projection", "predictor"} & with_heads.params.targets.keys() == set()
    assert "consistency_loss" not in without.learn(windows(), Counts(1)).metrics
    assert -1.0 <= float(with_heads.learn(windows(), Counts(1)).metrics["consistency_loss"]) < 1.0


def test_fresh_values_are_those_of_the_target_networks(known_actions):
    """The stored root values have no influence, and steps of the warm-up have values too."""
    fresh, stored = (make(gumbel_muzero, spec=SPEC, **OPTIONS | {"fresh_values": each}) for each in (True, False))
    batch, targets = windows(), fresh.params.targets
    with torch.no_grad():
        _, value = targets["prediction"](targets["representation"](batch["obs"].flatten(0, 1)))
    batch["root_value"] = scalars(value, stored.support).view(ROWS, LENGTH)
    batch["policy"][batch["is_random"]] = 0.0  # there is no policy to learn there
    expected = stored.learn(batch | {"is_random": torch.zeros(ROWS, LENGTH, dtype=torch.bool)}, Counts(1))
    update = fresh.learn(batch | {"root_value": torch.full((ROWS, LENGTH), 99.0)}, Counts(1))
    for name, metric in expected.metrics.items():
        torch.testing.assert_close(update.metrics[name], metric, rtol=1e-5, atol=1e-6, msg=name)
    torch.testing.assert_close(update.priorities, expected.priorities)


def inverse(y):
    """Return x with h(x) = y, by bisection."""
    low, high = -1e4, 1e4
    for _ in range(100):
        x = (low + high) / 2
        h = math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x
        low, high = (x, high) if h < y else (low, x)
    return x


@pytest.mark.parametrize("length", [K, K + 1, LENGTH])
def test_targets(length):
    batch = windows(length)
    found, kinds = unroll_targets(as_windows(batch), N, K), set()
    for i, row in enumerate(rows_of(batch)):
        values, rewards = reference_targets(row)
        for k, (value, policy) in enumerate(values):
            assert found.has_value[i, k] == (value is not None)
            assert found.has_policy[i, k] == (policy is not None)
            if value is not None:
                assert float(found.value[i, k]) == pytest.approx(value, rel=1e-5, abs=1e-5)
            if policy is not None:
                torch.testing.assert_close(found.policy[i, k].double(), policy)
            kinds.add((value is None, policy is None, value == 0.0))
        for k, reward in enumerate(rewards):
            assert found.has_reward[i, k] == (reward is not None)
            assert reward is None or float(found.reward[i, k]) == pytest.approx(reward)
    assert len(kinds) == 5


@pytest.mark.parametrize("x", [0.0, 1.0, -3.7, 200.0, -2000.0])
def test_scalars_return_from_their_distributions(x):
    mean = scalars(torch.tensor(_two_hot_50(x)).log(), torch.arange(-50.0, 51.0))
    assert float(mean) == pytest.approx(x, rel=1e-4, abs=1e-5)


def _two_hot_50(x):
    h = math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x
    return [max(0.0, 1 - abs(h - i)) for i in range(-50, 51)]
