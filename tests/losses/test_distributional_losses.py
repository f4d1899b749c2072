import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drl_cli.losses.distributional import (
    cross_entropy,
    distorted_cumulative,
    distorted_fraction,
    divergence,
    hl_gauss,
    midpoints,
    project,
    project_numpy,
    quantile_huber,
)

SUPPORT = torch.tensor([-1.0, 0.0, 1.0])


def projected(probs, reward, discount, support=SUPPORT):
    return project(torch.tensor([probs]), torch.tensor([reward]), torch.tensor([discount]), support)[0].tolist()


@pytest.mark.parametrize(
    ("probs", "reward", "discount", "expected"),
    [
        ([0.2, 0.3, 0.5], 0.0, 1.0, [0.2, 0.3, 0.5]),  # on the support, the last value too
        ([0.2, 0.3, 0.5], 0.25, 0.0, [0.0, 0.75, 0.25]),  # terminated: the reward alone
        ([0.0, 0.0, 1.0], 0.0, 0.5, [0.0, 0.5, 0.5]),
        ([0.0, 0.4, 0.6], 5.0, 1.0, [0.0, 0.0, 1.0]),  # beyond the end
        ([0.4, 0.6, 0.0], -5.0, 1.0, [1.0, 0.0, 0.0]),
        ([0.0, 1.0, 0.0], 1.0, 1.0, [0.0, 0.0, 1.0]),  # just on the end
    ],
)
def test_projection_literals(probs, reward, discount, expected):
    assert projected(probs, reward, discount) == pytest.approx(expected)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_the_projection_of_a_reward_that_is_not_finite_is_nan_in_its_row_alone(reward):
    probs = torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    found = project(probs, torch.tensor([reward, 0.0]), torch.ones(2), SUPPORT)
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1], probs[1])


def brute_force(probs, reward, discount, support):
    """Bellemare et al. 2017, algorithm 1, for one row."""
    out, gap = [0.0] * len(support), (support[-1] - support[0]) / (len(support) - 1)
    for p, z in zip(probs, support, strict=True):
        b = (min(max(reward + discount * z, support[0]), support[-1]) - support[0]) / gap
        b = min(b, len(support) - 1)  # what rounding adds
        low, high = math.floor(b), math.ceil(b)
        if low == high:
            out[low] += p
        else:
            out[low] += p * (high - b)
            out[high] += p * (b - low)
    return out


@settings(max_examples=150, deadline=None)
@given(
    atoms=st.integers(2, 60),
    reward=st.floats(-1e6, 1e6),
    discount=st.floats(0, 1),
    least=st.floats(-100, 50),
    width=st.floats(0.1, 300),
    seed=st.integers(0, 2**31),
)
def test_projection_conserves_the_mass_and_equals_brute_force(atoms, reward, discount, least, width, seed):
    support = torch.linspace(least, least + width, atoms, dtype=torch.float64)
    probs = torch.rand(1, atoms, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)
    one = {name: torch.tensor([x], dtype=torch.float64) for name, x in (("reward", reward), ("discount", discount))}
    out = project(probs, **one, support=support)
    assert float(out.sum()) == pytest.approx(1.0, abs=1e-12)
    assert (out >= 0).all()
    expected = brute_force(probs[0].tolist(), reward, discount, support.tolist())
    np.testing.assert_allclose(out[0], expected, atol=1e-8)
    columns = {name: value.numpy() for name, value in one.items()}
    np.testing.assert_allclose(project_numpy(probs.numpy(), **columns, support=support.numpy())[0], expected, atol=1e-8)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_a_projection_does_not_hide_a_reward_that_is_not_finite(reward):
    probs, support = torch.full((2, 3), 1 / 3), torch.linspace(-1, 1, 3)
    out = project(probs, torch.tensor([reward, 9.0]), torch.tensor([0.9, 0.9]), support)
    assert out[0].isnan().all()
    assert out[1].tolist() == pytest.approx([0, 0, 1])
    columns = {"reward": np.array([reward, 9.0]), "discount": np.array([0.9, 0.9])}
    np.testing.assert_allclose(project_numpy(probs.numpy(), **columns, support=support.numpy()), out, atol=1e-6)


def test_cross_entropy_and_divergence_literals():
    logits, probs = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    loss = cross_entropy(logits, probs)
    assert loss.tolist() == pytest.approx([-0.5 * math.log(0.25) - 0.5 * math.log(0.75), math.log(2)])
    assert divergence(logits, probs).tolist() == pytest.approx([float(loss[0]) - math.log(2), math.log(2)])


@pytest.mark.parametrize("kappa", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("shared", [True, False], ids=["fractions for all rows", "fractions of each row"])
def test_quantile_huber_equals_brute_force(kappa, shared):
    rng = torch.Generator().manual_seed(0)
    quantiles = torch.randn(3, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    target = 2 * torch.randn(3, 5, generator=rng, dtype=torch.float64)
    fraction = torch.rand(*(() if shared else (3,)), 4, generator=rng, dtype=torch.float64)
    loss, slope = quantile_huber(quantiles, target, fraction, kappa)
    for row in range(3):
        expected = 0.0
        for i in range(4):
            for j in range(5):
                u = float(target[row, j] - quantiles[row, i].detach())
                huber = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                size = huber / kappa if kappa else abs(u)
                expected += abs(float(fraction.expand(3, 4)[row, i]) - (u < 0)) * size / 5
        assert float(loss[row].detach()) == pytest.approx(expected)
    loss.sum().backward()
    torch.testing.assert_close(slope, quantiles.grad)


@pytest.mark.parametrize(
    ("risk", "level", "shares"),
    [
        ("mean", 1.0, [0.0, 0.25, 0.5, 1.0]),
        ("cvar", 0.5, [0.0, 0.5, 1.0, 1.0]),
        ("power", 1.0, [0.0, 0.0625, 0.25, 1.0]),
        ("power", 0.5, [0.0, 0.125, 0.3535534, 1.0]),
        ("power", -1.0, [0.0, 0.4375, 0.75, 1.0]),
    ],
)
def test_what_the_worst_returns_count_for_a_risk_measure(risk, level, shares):
    worst = np.array([0.0, 0.25, 0.5, 1.0], np.float32)
    assert distorted_cumulative(worst, risk, level).tolist() == pytest.approx(shares)


@pytest.mark.parametrize(("risk", "level"), [("mean", 1.0), ("cvar", 0.3), ("power", 1.5), ("power", -1.5)])
def test_shares_and_fractions_of_a_risk_measure_are_inverse_to_each_other(risk, level):
    fraction = midpoints(50)
    np.testing.assert_allclose(
        distorted_cumulative(distorted_fraction(fraction, risk, level), risk, level), fraction, atol=1e-5
    )


def normal_mass(low, high, mean, std):
    return 0.5 * (math.erf((high - mean) / (std * math.sqrt(2))) - math.erf((low - mean) / (std * math.sqrt(2))))


@pytest.mark.parametrize(("target", "mean"), [(0.3, 0.3), (-0.9, -0.9), (1.0, 1.0), (7.0, 1.0), (-7.0, -1.0)])
def test_hl_gauss_is_the_mass_of_a_normal_distribution_in_each_bin(target, mean):
    masses = [normal_mass(z - 0.5, z + 0.5, mean, 0.75) for z in (-1.0, 0.0, 1.0)]
    found = hl_gauss(torch.tensor([target, 0.0]), SUPPORT)
    assert found.shape == (2, 3)
    assert found[0].tolist() == pytest.approx([mass / sum(masses) for mass in masses], abs=1e-6)
    narrow = hl_gauss(torch.tensor([target]), SUPPORT, 0.1)[0]
    masses = [normal_mass(z - 0.5, z + 0.5, mean, 0.1) for z in (-1.0, 0.0, 1.0)]
    assert narrow.tolist() == pytest.approx([mass / sum(masses) for mass in masses], abs=1e-6)


def test_the_mean_of_hl_gauss_is_the_target_inside_the_support():
    support, target = torch.linspace(-10.0, 10.0, 151), torch.linspace(-9.0, 9.0, 40)
    torch.testing.assert_close(hl_gauss(target, support) @ support, target, rtol=1e-3, atol=2e-3)
    ends = hl_gauss(torch.tensor([-1e6, 1e6]), support)
    assert ends.isfinite().all()
    assert ends.argmax(1).tolist() == [0, 150]
    assert hl_gauss(torch.tensor([math.nan]), support).isnan().all()
