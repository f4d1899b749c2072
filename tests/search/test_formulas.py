"""The formulas of the searches against numbers that were computed by hand, from Python's math, or by mctx 0.0.71."""

import math

import numpy as np
import pytest

from drl_cli.search import formulas
from drl_cli.search.formulas import Gumbel, Puct

PRIOR = np.array([[0.5, 0.25, 0.125, 0.125]])
VISITS = np.array([[2, 1, 0, 0]], np.int32)
Q = np.array([[1.0, 4.0, 0.0, 0.0]])
RAW_VALUE = np.array([1.0])


def test_mixed_value_weighs_q_of_visited_actions_by_the_prior() -> None:
    average = (0.5 * 1.0 + 0.25 * 4.0) / 0.75
    assert formulas.mixed_value(RAW_VALUE, PRIOR, VISITS, Q) == pytest.approx([(1.0 + 3 * average) / 4])
    assert formulas.mixed_value(RAW_VALUE, PRIOR, 0 * VISITS, Q).tolist() == [1.0]


def test_completed_values_have_the_mixed_value_for_actions_without_a_visit() -> None:
    completed = formulas.completed_values(RAW_VALUE, PRIOR, VISITS, Q)
    assert completed == pytest.approx(np.array([[1.0, 4.0, 1.75, 1.75]]))


def test_improved_policy() -> None:
    rule = Gumbel(visit_init=50.0, value_scale=0.1)
    sigma = [(50 + 2) * 0.1 * (q - 1.0) / 3.0 for q in (1.0, 4.0, 1.75, 1.75)]
    weights = [p * math.exp(x) for p, x in zip(PRIOR[0], sigma, strict=True)]
    expected = [weight / sum(weights) for weight in weights]
    policy = formulas.improved_policy(rule, RAW_VALUE, PRIOR, VISITS, Q)
    np.testing.assert_allclose(policy, [expected], rtol=1e-11)
    scores = formulas.interior_scores(rule, RAW_VALUE, PRIOR, VISITS, Q)
    np.testing.assert_allclose(scores, [np.subtract(expected, [2 / 4, 1 / 4, 0, 0])], rtol=1e-9)
    noisy_logits = np.log(PRIOR) + np.array([[0.5, -0.5, 1.0, 0.0]])
    scores = formulas.root_scores(rule, noisy_logits, RAW_VALUE, PRIOR, VISITS, Q)
    np.testing.assert_allclose(scores, noisy_logits + sigma)


def test_an_action_that_is_not_possible_does_not_count() -> None:
    prior, visits, q = np.array([[0.75, 0.25, 0.0]]), np.array([[3, 1, 0]], np.int32), np.array([[1.0, 2.0, 0.0]])
    policy = formulas.improved_policy(Gumbel(), np.array([1000.0]), prior, visits, q)  # completed with about 200
    weights = [0.75, 0.25 * math.exp(53 * 0.1)]
    np.testing.assert_allclose(policy, [[*(np.array(weights) / sum(weights)), 0.0]], rtol=1e-11)
    assert formulas.interior_scores(Gumbel(), np.array([1.0]), prior, visits, q)[0, 2] == -np.inf
    noisy_logits = np.zeros((1, 3))
    assert np.isfinite(formulas.root_scores(Gumbel(), noisy_logits, np.array([1.0]), prior, visits, q)).tolist() == [
        [True, True, False]
    ]
    zero, one = np.zeros(1), np.ones(1)
    assert formulas.puct_scores(prior, visits, q, one, zero, one)[0, 2] == -np.inf


def test_equal_values_leave_the_prior() -> None:
    policy = formulas.improved_policy(Gumbel(), np.array([2.0]), PRIOR, VISITS, np.full((1, 4), 2.0))
    np.testing.assert_allclose(policy, PRIOR, rtol=1e-12)


def test_puct_scores() -> None:
    factor = formulas.exploration(Puct(), 10)[np.array([4])]
    assert factor == pytest.approx([(1.25 + math.log((1 + 4 + 19652) / 19652)) * 2.0])
    scores = formulas.puct_scores(PRIOR, VISITS, Q, factor, np.array([0.0]), np.array([5.0]))
    expected = [0.2 + 0.5 / 3 * factor[0], 0.8 + 0.25 / 2 * factor[0], 0.125 * factor[0], 0.125 * factor[0]]
    np.testing.assert_allclose(scores, [expected])


def test_without_a_spread_of_q_only_the_prior_counts() -> None:
    scores = formulas.puct_scores(PRIOR, VISITS, Q, np.array([2.0]), np.array([4.0]), np.array([4.0]))
    np.testing.assert_allclose(scores, 2.0 * PRIOR / (1 + VISITS))


def test_halving_visits_the_considered_actions_equally_often_in_each_round() -> None:
    assert formulas.halving(4, 16) == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert (formulas.halving(3, 9), formulas.halving(16, 4)) == ((0, 0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 0))
    assert (formulas.halving(1, 3), formulas.halving(5, 0)) == ((0, 1, 2), ())


def test_exp_is_exact_to_11_digits_and_0_for_what_is_forbidden() -> None:
    x = np.concatenate([np.linspace(-699.0, 0.0, 5_000), -np.logspace(-12, 2, 100)])
    np.testing.assert_allclose(formulas.exp(x), np.exp(x), rtol=1e-11)
    assert formulas.exp(np.array([0.0, -1e9, -np.inf, np.nan])).tolist() == [1.0, 0.0, 0.0, 0.0]
    probabilities = formulas.softmax(np.array([[3.0, 1.0, -1e9, -np.inf]], np.float32))
    np.testing.assert_allclose(probabilities, [[1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2)), 0, 0]], rtol=1e-11)


def test_scores_that_differ_by_rounding_are_equal() -> None:
    scores = np.array([[0.0, 1.0, 1.0 + 1e-9, 0.5], [2.0, 1.0, 2.0 + 1e-5, 3.0], [-np.inf, -np.inf, -np.inf, -1.0]])
    assert formulas.first_best(scores).tolist() == [1, 3, 3]
