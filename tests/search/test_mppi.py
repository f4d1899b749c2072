"""MPPI equals a slow loop, and finds the best actions."""

import math

import numpy as np
import torch

from drl_cli.search.mppi import first_action, mppi

E, H, A, N, P, K, ITERATIONS = 3, 2, 2, 12, 4, 5, 3


def returns(action):
    """Different for each environment."""
    goal = torch.linspace(-0.5, 0.5, len(action)).view(-1, 1, 1, 1).to(action)
    return -4 * ((action - goal).square() * torch.tensor([1.0, 0.5]).view(-1, 1).to(action)).sum((2, 3))


def one_plan(e, proposed, mean, noise, temperature, low, high):
    """Plan for environment `e` with Python numbers in lists `[H][A]`."""

    def value(plan):
        whole = torch.zeros(E, 1, H, A, dtype=torch.float64)
        whole[e, 0] = torch.tensor(plan, dtype=torch.float64)
        return float(returns(whole)[e, 0])

    std = [[high] * A for _ in range(H)]
    for normals in noise:
        sampled = np.clip(np.array(mean) + np.array(std) * np.array(normals), -1, 1)
        plans = [*proposed, *sampled.tolist()]
        best = sorted(plans, key=value, reverse=True)[:K]
        weights = [math.exp(temperature * (value(plan) - value(best[0]))) for plan in best]
        weights = [weight / sum(weights) for weight in weights]
        mean = [[sum(w * p[h][a] for w, p in zip(weights, best, strict=True)) for a in range(A)] for h in range(H)]
        std = [[0.0] * A for _ in range(H)]
        for h in range(H):
            for a in range(A):
                variance = sum(w * (p[h][a] - mean[h][a]) ** 2 for w, p in zip(weights, best, strict=True))
                std[h][a] = min(high, max(low, math.sqrt(variance)))
    return mean, std, best, weights


def test_plans_equal_a_slow_loop_for_each_environment():
    rng = np.random.default_rng(0)
    proposed = torch.from_numpy(rng.uniform(-1, 1, (E, P, H, A)))
    mean = torch.from_numpy(rng.uniform(-1, 1, (E, H, A)))
    noise = torch.from_numpy(rng.standard_normal((E, ITERATIONS, N - P, H, A)))
    found = mppi(returns, proposed, mean, noise, K, 0.7, (0.3, 1.5))
    for e in range(E):
        expected = one_plan(e, proposed[e].tolist(), mean[e].tolist(), noise[e].tolist(), 0.7, 0.3, 1.5)
        for own, other in zip(found, expected, strict=True):
            torch.testing.assert_close(own[e], torch.tensor(other, dtype=torch.float64))
    assert (found[1] == 0.3).any()  # the smallest standard deviation is in use


def test_the_best_actions_are_found_and_bad_returns_ignored():
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((E, 8, 400, H, A)))
    none, mean = torch.zeros(E, 0, H, A, dtype=torch.float64), torch.zeros(E, H, A, dtype=torch.float64)

    def without_the_first(action):
        found = 5 * returns(action) - 1
        found[:, 0] = -math.inf
        return found

    plan, *_ = mppi(without_the_first, none, mean, noise, 20, 2.0, (0.05, 2.0))
    goal = torch.linspace(-0.5, 0.5, E, dtype=torch.float64).view(-1, 1, 1).expand(E, H, A)
    torch.testing.assert_close(plan, goal, atol=0.1, rtol=0)


def test_the_action_is_that_of_a_weighted_elite_with_noise():
    elite = torch.tensor([[[[-0.5]], [[0.0]], [[0.5]]]]).expand(20_000, -1, -1, -1)
    weight = torch.tensor([[0.2, 0.5, 0.3]]).expand(20_000, -1)
    none = torch.zeros(20_000, 1, 1)
    action = first_action(np.random.default_rng(0), none, elite, weight)
    shares = [(action == value).float().mean().item() for value in (-0.5, 0.0, 0.5)]
    np.testing.assert_allclose(shares, [0.2, 0.5, 0.3], atol=0.015)
    noisy = first_action(np.random.default_rng(0), none + 0.1, elite, weight)
    assert abs((noisy - action).std().item() - 0.1) < 0.005
    assert first_action(np.random.default_rng(0), none + 9, elite, weight).abs().max() == 1
