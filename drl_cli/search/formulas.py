"""The formulas of the tree searches, as functions of numpy arrays. `[n, A]` has n nodes and the A actions of each.

kernel.cpp has the same floating-point operations in the same order, so that both give the same bits. Therefore, sums
run from left to right, and `exp` is not numpy's function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from drl_cli.types import Array

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""log2(e), and log(2) as the sum of two numbers, which reduces the rounding error of `exp`."""
TAYLOR = [1.0 / math.factorial(i) for i in range(10, -1, -1)]
"""The coefficients of the Taylor polynomial of e^x, the highest power first."""
UNDERFLOW = -700.0
"""The largest x for which `exp` returns 0."""
EPSILON = 1e-8
"""The smallest range of values that `sigma_of` divides by."""
TIE = 1e-6
"""Scores that differ by at most this number are equal."""


@dataclass(frozen=True)
class Puct:
    """Constants of MuZero's search, PUCT (Schrittwieser et al. 2020, arXiv 1911.08265, appendix B)."""

    init: float = 1.25
    """The constant c1 of the exploration term."""
    base: float = 19652.0
    """The constant c2 of the exploration term."""
    noise_share: float = 0.25
    """The weight of the noise in the root's prior: (1 - noise_share) prior + noise_share noise."""


@dataclass(frozen=True)
class Gumbel:
    """Constants of Gumbel MuZero's search (Danihelka et al., ICLR 2022)."""

    considered: int = 16
    """The maximum number of actions that the simulations try at the root."""
    visit_init: float = 50.0
    """The paper's c_visit."""
    value_scale: float = 0.1
    """The paper's c_scale, which is 0.1 for Atari, and 1 for Go and chess."""


PUCT, GUMBEL = Puct(), Gumbel()


def exp(x: Array) -> Array:
    """Return e^x for x <= 0, with a relative error below 1e-12. For x <= -700 and for NaN, return 0.

    The code computes e^x = 2^power e^rest, where |rest| <= log(2) / 2, and e^rest by a Taylor polynomial.
    """
    with np.errstate(invalid="ignore"):  # a NaN cannot be converted to int32
        safe = np.maximum(x, UNDERFLOW)
        power = np.rint(safe * LOG2_E)
        rest = (safe - power * LN2_HIGH) - power * LN2_LOW
        exp_rest = np.full_like(rest, TAYLOR[0])
        for coefficient in TAYLOR[1:]:
            exp_rest = exp_rest * rest + coefficient
        result = np.ldexp(exp_rest, power.astype(np.int32))
        return np.where(x > UNDERFLOW, result, 0.0)


def total(x: Array) -> Array:
    """Return the sum of `x` `[..., A]` over the last axis, `[..., 1]`, added from left to right."""
    return np.add.accumulate(x, -1)[..., -1:]


def softmax(logits: Array) -> Array:
    """Return the probabilities float64 `[..., A]` of logits `[..., A]`. A logit of -inf or -1e9 has probability 0."""
    x = logits.astype(np.float64)
    weights = exp(x - x.max(-1, keepdims=True))
    return weights * (1.0 / total(weights))


def first_best(scores: Array) -> Array:
    """Return the index of the largest of the scores `[n, A]` of each node, int64 `[n]`.

    Scores that are at most `TIE` below the largest count as equal, so that rounding errors do not decide. Return the
    first of equal scores.
    """
    is_best = scores >= scores.max(-1, keepdims=True) - TIE
    best: Array = is_best.argmax(-1)
    return best


@lru_cache(maxsize=64)
def exploration(rule: Puct, nodes: int) -> Array:
    """Return PUCT's exploration factor (c1 + log((1 + N + c2) / c2)) sqrt(N) for N = 0, ..., `nodes` visits of a node.

    The result is `[nodes + 1]`.
    """
    visits = np.arange(nodes + 1, dtype=np.float64)
    return (rule.init + np.log((1.0 + visits + rule.base) / rule.base)) * np.sqrt(visits)


def puct_scores(prior: Array, visits: Array, q: Array, factor: Array, low: Array, high: Array) -> Array:
    """Return PUCT's scores of the actions of n nodes, `[n, A]` (MuZero, arXiv 1911.08265, equations 2 and 5).

    The score of an action is Q' + `prior` * `factor` / (1 + `visits`). `prior`, `visits` and `q` are `[n, A]`; `factor`
    `[n]` is `exploration` of the node's visits. Q' is Q, scaled so that `low` `[n]`, the smallest Q of the tree,
    becomes 0, and `high` `[n]`, the largest, becomes 1. Q' is 0 if the action was never visited or if `low` equals
    `high`. An action with prior 0 has the score -inf.
    """
    low, high = low[:, None], high[:, None]
    is_known = (visits > 0) & (high > low)
    scaled_q = np.where(is_known, q - low, 0.0) / np.where(high > low, high - low, 1.0)
    scores = scaled_q + prior * factor[:, None] / (visits + 1.0)
    return np.where(prior > 0.0, scores, -np.inf)


def mixed_value(raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return the mixed value of each of n nodes, `[n]`: a mean of the model's value and of Q of the visited actions.

    v = (raw_value + N * mean_q) / (1 + N), where N is the number of all visits. mean_q is the mean Q of the visited
    actions, weighted by their prior (Danihelka et al. 2022, appendix D). `raw_value` `[n]` is the model's value.
    `prior`, `visits` and `q` are the prior probabilities, the numbers of visits and Q of the actions, `[n, A]` each.
    """
    is_visited = visits > 0
    num_visits = visits.sum(-1, keepdims=True)  # N
    prior_sum = np.where(num_visits > 0, total(np.where(is_visited, prior, 0.0)), 1.0)
    weighted_q = total(np.where(is_visited, prior * q, 0.0))
    # mean_q is weighted_q / prior_sum. Both sides of the fraction are multiplied by prior_sum, which saves a division.
    value: Array = (raw_value[:, None] * prior_sum + num_visits * weighted_q) / (prior_sum * (num_visits + 1.0))
    return value[:, 0]


def completed_values(raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return Q of each visited action, and the mixed value of its node for all other actions, `[n, A]`.

    This is equation 10 of Danihelka et al. 2022. The arguments are as in `mixed_value`.
    """
    return np.where(visits > 0, q, mixed_value(raw_value, prior, visits, q)[:, None])


def sigma_of(rule: Gumbel, completed: Array, prior: Array, visits: Array) -> tuple[Array, Array]:
    """Return sigma(q) of the completed values of n nodes, `[n, A]`, and the largest sigma of each node, `[n, 1]`.

    sigma(q) = (c_visit + max_b N(b)) c_scale q' (Danihelka et al. 2022, equation 8). As in the authors' library mctx,
    q' is q, scaled so that the smallest completed value of the node becomes 0 and the largest becomes 1. Actions with
    prior 0 do not count for the smallest and the largest. `prior` and the numbers of visits N, `visits`, are `[n, A]`.
    """
    is_possible = prior > 0.0
    low = np.where(is_possible, completed, np.inf).min(-1, keepdims=True)
    high = np.where(is_possible, completed, -np.inf).max(-1, keepdims=True)
    scale = (rule.visit_init + visits.max(-1, keepdims=True)) * rule.value_scale
    factor = scale / np.maximum(high - low, EPSILON)
    return factor * (completed - low), factor * (high - low)


def improved_policy(rule: Gumbel, raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return the improved policy of n nodes, softmax(logits + sigma(completed values)), `[n, A]`.

    This is equation 11 of Danihelka et al. 2022. The arguments are as in `mixed_value`.
    """
    completed = completed_values(raw_value, prior, visits, q)
    sigma, max_sigma = sigma_of(rule, completed, prior, visits)
    weights = prior * exp(np.where(prior > 0.0, sigma - max_sigma, -np.inf))  # prior = softmax(logits)
    return weights * (1.0 / total(weights))


def interior_scores(rule: Gumbel, raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return Gumbel MuZero's scores of the actions of n nodes below the root, `[n, A]`.

    The search visits the action with the largest score. The score of action a is pi'(a) - N(a) / (1 + sum_b N(b)),
    where pi' is the improved policy and N the number of visits (Danihelka et al. 2022, equation 14). An action with
    prior 0 has the score -inf. The arguments are as in `mixed_value`.
    """
    visited_fraction = visits * (1.0 / (1.0 + visits.sum(-1, keepdims=True)))
    scores = improved_policy(rule, raw_value, prior, visits, q) - visited_fraction
    return np.where(prior > 0.0, scores, -np.inf)


def root_scores(rule: Gumbel, noisy_logits: Array, raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return Gumbel MuZero's scores of the actions of n roots, noise + logits + sigma(completed values), `[n, A]`.

    `noisy_logits` `[n, A]` are noise + logits. An action with prior 0 has the score -inf. The other arguments are as in
    `mixed_value`.
    """
    completed = completed_values(raw_value, prior, visits, q)
    sigma, _ = sigma_of(rule, completed, prior, visits)
    return np.where(prior > 0.0, noisy_logits + sigma, -np.inf)


@lru_cache(maxsize=64)
def halving_table(considered: int, simulations: int) -> Array:
    """Return `halving(num, simulations)` for num = 0, ..., `considered`, int32 `[considered + 1, simulations]`."""
    rows = [halving(num, simulations) for num in range(considered + 1)]
    return np.array(rows, np.int32).reshape(considered + 1, simulations)


def halving(considered: int, simulations: int) -> tuple[int, ...]:
    """Return the schedule of sequential halving: one number of visits for each simulation.

    A simulation selects, among the actions of the root with this number of visits so far, the action with the best
    score. `considered` is the number of actions at the start. The simulations are divided into rounds of about equal
    length. In a round, all remaining actions get equally many visits. After a round, the better half of the actions
    remains, but at least 2 (Danihelka et al. 2022, figure 1, and the authors' library mctx).
    """
    if considered <= 1:
        return tuple(range(simulations))
    num_rounds = math.ceil(math.log2(considered))
    visits, remaining, schedule = [0] * considered, considered, list[int]()
    while len(schedule) < simulations:
        for _ in range(max(1, simulations // (num_rounds * remaining))):
            schedule += visits[:remaining]
            visits[:remaining] = [num + 1 for num in visits[:remaining]]
        remaining = max(2, remaining // 2)
    return tuple(schedule[:simulations])
