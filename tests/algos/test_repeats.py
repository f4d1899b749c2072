"""Repeats, and the policy of DQN that explores with them."""

import numpy as np
import pytest
from confs import algo_config

from drl_cli.algos.noise import Repeats
from drl_cli.algos.value import dqn
from drl_cli.networks.config import NetworkConfig
from drl_cli.types import ActionSpec, Column, EnvSpec, PreviousStep

SPEC = EnvSpec("x", Column((5,), "float32"), ActionSpec("discrete", 50, "Discrete(50)"))


def previous(begins):
    return PreviousStep(np.zeros(len(begins), np.int64), np.zeros(len(begins), np.float32), np.array(begins))


def policy_of(repeat, seed=0, epsilon=1.0):
    config = algo_config("dqn", dqn.Config, epsilon_repeat=repeat, epsilon_start=epsilon, epsilon_end=epsilon)
    policy = dqn.Policy(config, NetworkConfig((16,), "relu", "uniform"), SPEC, seed)
    policy.load(np.random.default_rng(0).standard_normal(5 * 16 + 16 + 16 * 50 + 50).astype(np.float32))
    return policy


def lengths_of(choices):
    ends = np.flatnonzero(np.diff(choices) != 0)
    return np.diff(ends)


def step(repeats, rng, is_random, action, last=None):
    return repeats.draw(len(action), last, rng).start(np.array(is_random), np.array(action))


def test_a_choice_is_repeated_with_a_probability_that_falls_with_the_square_of_its_length():
    repeats, rng = Repeats(128), np.random.default_rng(0)
    choices = []
    for number in range(60_000):
        is_repeated, action = step(repeats, rng, [True], [number])
        assert is_repeated == [True]
        choices.append(action[0])
    lengths = lengths_of(choices)
    shares = [(lengths == n).mean() for n in (1, 2, 4)]
    np.testing.assert_allclose(shares, np.array([1, 1 / 4, 1 / 16]) * 0.611, rtol=0.07)  # 1 / sum(n^-2, n=1..128)
    assert 64 < lengths.max() <= 128


def test_only_random_steps_start_to_repeat():
    repeats, rng = Repeats(8), np.random.default_rng(0)
    is_random = rng.random((5000, 1)) < 0.1
    held = [step(repeats, rng, row, [1])[0][0] for row in is_random]
    starts = np.flatnonzero(np.diff([0, *map(int, held)]) == 1)
    assert is_random[starts].all()
    assert 0.1 < np.mean(held) < 0.3
    assert not step(repeats, rng, [False] * 2, [1, 1])[0].any()


def test_a_repetition_ends_with_the_episode():
    repeats, rng = Repeats(128), np.random.default_rng(0)
    while repeats.parts.shape[1] < 2 or not (repeats.parts[1] > 1).all():
        step(repeats, rng, [True, True], [3, 4])
    held, action = step(repeats, rng, [False, False], [5, 6], previous([False, True]))
    assert held.tolist() == [True, False]
    assert action[0] == 3


OBS = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)


@pytest.mark.parametrize("repeat", [1, 32])
def test_a_policy_repeats_random_choices_and_goes_on_from_its_state(repeat):
    policy, other = policy_of(repeat), policy_of(repeat, seed=9)
    policy.act(OBS, previous([True] * 6))
    other.load_state(policy.state())
    acted = []
    for _ in range(40):
        one, two = (each.act(OBS, previous([False] * 6))["action"] for each in (policy, other))
        np.testing.assert_array_equal(one, two)
        acted.append(one)
    same = np.mean(np.array(acted)[1:] == np.array(acted)[:-1])
    assert (same > 0.2) == (repeat > 1)  # of 50 choices, two independent ones seldom agree
    assert len(np.unique(acted)) > 10


def test_greedy_steps_are_greedy():
    policy, plain = policy_of(32, epsilon=0.0), policy_of(1, epsilon=0.0)
    for _ in range(5):
        np.testing.assert_array_equal(policy.act(OBS)["action"], plain.greedy(OBS))
