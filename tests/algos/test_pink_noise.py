"""PinkNoise, and the policies of SAC and TQC that explore with it."""

import numpy as np
import pytest
from continuous import policy_of

from drl_cli.algos.lookup import load_algorithm
from drl_cli.algos.noise import PinkNoise
from drl_cli.types import PreviousStep

STEPS, ENVS = 512, 400


def previous(begins):
    return PreviousStep(np.zeros((len(begins), 3)), np.zeros(len(begins), np.float32), np.array(begins))


@pytest.fixture(scope="module")
def noise():
    """The noise of 512 steps in 400 environments, `[512, 400]`."""
    pink, rng = PinkNoise(1), np.random.default_rng(0)
    return np.stack([pink.draw(ENVS, None, rng)[:, 0] for _ in range(STEPS)])


def test_every_step_has_mean_0_and_variance_1(noise):
    assert noise.dtype == np.float32
    for step in (0, 1, 50, STEPS - 1):
        assert abs(noise[step].mean()) < 4 / ENVS**0.5
        assert abs(noise[step].var() - 1) < 4 * (2 / ENVS) ** 0.5


def test_the_power_falls_with_the_frequency(noise):
    power = (np.abs(np.fft.rfft(noise, axis=0)) ** 2).mean(1)
    frequency = np.arange(len(power))
    middle = slice(8, 100)  # between the longest and the shortest time constant
    slope = np.polyfit(np.log(frequency[middle]), np.log(power[middle]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.15)  # 0 for white noise, -2 for a random walk


def test_environments_and_dimensions_are_independent():
    pink, rng = PinkNoise(2), np.random.default_rng(0)
    values = np.stack([pink.draw(2, None, rng) for _ in range(4000)]).reshape(-1, 4)
    correlations = np.corrcoef(values.T)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.3  # the noise of 4,000 steps has about 100 independent values


def test_the_noise_starts_again_in_a_new_episode():
    following, new = [], []
    for seed in range(300):
        pink, rng = PinkNoise(1), np.random.default_rng(seed)
        first = pink.draw(2, None, rng)[:, 0]
        second = pink.draw(2, previous([False, True]), rng)[:, 0]
        following.append((first[0], second[0]))
        new.append((first[1], second[1]))
    assert np.corrcoef(np.transpose(following))[0, 1] > 0.6
    assert abs(np.corrcoef(np.transpose(new))[0, 1]) < 0.25


@pytest.mark.parametrize("name", ["sac", "tqc"])
@pytest.mark.parametrize("kind", ["gaussian", "pink"])
def test_a_policy_goes_on_from_its_state(name, kind):
    module, obs = load_algorithm(name), np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    policy, other = (policy_of(module, noise_kind=kind, seed=seed) for seed in (0, 9))
    begins, goes_on = previous([True] * 4), previous([False] * 4)
    policy.act(obs, begins)
    other.load_state(policy.state())
    for _ in range(3):
        one, two = (each.act(obs, goes_on)["action"] for each in (policy, other))
        np.testing.assert_array_equal(one, two)
    later, before = policy.act(obs, goes_on)["action"], one
    assert (np.corrcoef(later.ravel(), before.ravel())[0, 1] > 0.5) == (kind == "pink")
    assert np.abs(policy.greedy(obs)).max() < 1
