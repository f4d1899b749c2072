"""The formulas of the searches, as functions of numpy arrays.

The operations and their order are those of kernel.cpp, so that both compute the same bits: sums are from left to right,
and `exp` is written out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from drl_cli.types import Array

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
TAYLOR = [1.0 / math.factorial(i) for i in range(10, -1, -1)]
LEAST = -700.0
EPSILON = 1e-8
TIE = 1e-6


@dataclass(frozen=True)
class Puct:
    """Constants of MuZero's search (Schrittwieser et al. 2020, arXiv 1911.08265, appendix B)."""

    init: float = 1.25
    """c1."""
    base: float = 19652.0
    """c2."""
    noise_share: float = 0.25
    """How much of the root's prior is replaced by noise."""


@dataclass(frozen=True)
class Gumbel:
    """Constants of Gumbel MuZero's search (Danihelka et al., ICLR 2022)."""

    considered: int = 16
    """The most actions that are tried at the root."""
    visit_init: float = 50.0
    """c_visit."""
    value_scale: float = 0.1
    """c_scale: 0.1 as for Atari; the paper has 1 for Go and chess."""


PUCT, GUMBEL = Puct(), Gumbel()


def exp(x: Array) -> Array:
    """Return e^x for x of at most 0, with a relative error below 1e-12. From -700 down, return 0."""
    with np.errstate(invalid="ignore"):
        safe = np.maximum(x, LEAST)
        power = np.rint(safe * LOG2_E)
        rest = (safe - power * LN2_HIGH) - power * LN2_LOW
        result = np.full_like(rest, TAYLOR[0])
        for coefficient in TAYLOR[1:]:
            result = result * rest + coefficient
        return np.where(x > LEAST, np.ldexp(result, power.astype(np.int32)), 0.0)


def total(x: Array) -> Array:
    """Return the sum over the last axis, `[..., 1]`, from left to right."""
    return np.add.accumulate(x, -1)[..., -1:]


def softmax(logits: Array) -> Array:
    """Return the probabilities of logits `[..., A]` as float64. A logit of -inf, or of -1e9, has probability 0."""
    x = logits.astype(np.float64)
    weights = exp(x - x.max(-1, keepdims=True))
    return weights * (1.0 / total(weights))


def first_best(scores: Array) -> Array:
    """Return the first action whose score `[n, A]` is at most `TIE` below the largest: rounding decides nothing."""
    best: Array = (scores >= scores.max(-1, keepdims=True) - TIE).argmax(-1)
    return best


@lru_cache(maxsize=64)
def exploration(rule: Puct, nodes: int) -> Array:
    """Return (c1 + log((1 + N + c2) / c2)) sqrt(N) for N of 0 to `nodes`, `[nodes + 1]`."""
    visits = np.arange(nodes + 1, dtype=np.float64)
    return (rule.init + np.log((1.0 + visits + rule.base) / rule.base)) * np.sqrt(visits)


def puct_scores(prior: Array, visits: Array, q: Array, factor: Array, low: Array, high: Array) -> Array:
    """Return MuZero's scores of actions, `[n, A]` (arXiv 1911.08265, equations 2 and 5).

    score = Q' + P factor / (1 + N), where `factor` `[n]` is `exploration` of the node's visits. Q' is Q(s, a) between
    the least and the largest Q of the tree (`low` and `high`, `[n]`) on a scale from 0 to 1. It is 0 for an action that
    was never visited, and for all actions of a tree whose Q are equal. An action whose prior is 0 has the score -inf.
    """
    low, high = low[:, None], high[:, None]
    is_known = (visits > 0) & (high > low)
    value = np.where(is_known, q - low, 0.0) / np.where(high > low, high - low, 1.0)
    return np.where(prior > 0.0, value + prior * factor[:, None] / (visits + 1.0), -np.inf)


def mixed_value(raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return the value of nodes from the model's value `[n]` and from Q of visited actions, `[n]`.

    v = (raw value + sum_b N(b) * (sum_{a visited} P(a) Q(a)) / (sum_{a visited} P(a))) / (1 + sum_b N(b))
    (Danihelka et al. 2022, appendix D).
    """
    is_visited = visits > 0
    num = visits.sum(-1, keepdims=True)
    weight = np.where(num > 0, total(np.where(is_visited, prior, 0.0)), 1.0)
    weighted = total(np.where(is_visited, prior * q, 0.0))
    value: Array = ((raw_value[:, None] * weight + num * weighted) / (weight * (num + 1.0)))[:, 0]
    return value


def completed_values(raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return Q(a) of visited actions and the mixed value in place of the others', `[n, A]` (equation 10)."""
    return np.where(visits > 0, q, mixed_value(raw_value, prior, visits, q)[:, None])


def transformed(rule: Gumbel, completed: Array, prior: Array, visits: Array) -> tuple[Array, Array]:
    """Return sigma of completed values, `[n, A]`, and its largest value, `[n, 1]`.

    sigma(q) = (c_visit + max_b N(b)) c_scale q' (equation 8), where q' is q on a scale from 0 (the least of the node's
    completed values) to 1 (the largest), as in the authors' mctx. Actions with a prior of 0 do not count.
    """
    is_possible = prior > 0.0
    low = np.where(is_possible, completed, np.inf).min(-1, keepdims=True)
    high = np.where(is_possible, completed, -np.inf).max(-1, keepdims=True)
    scale = (rule.visit_init + visits.max(-1, keepdims=True)) * rule.value_scale
    factor = scale / np.maximum(high - low, EPSILON)
    return factor * (completed - low), factor * (high - low)


def improved_policy(rule: Gumbel, raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return softmax(logits + sigma(completed values)), `[n, A]` (equation 11)."""
    completed = completed_values(raw_value, prior, visits, q)
    sigma, most = transformed(rule, completed, prior, visits)
    weights = prior * exp(np.where(prior > 0.0, sigma - most, -np.inf))
    return weights * (1.0 / total(weights))


def interior_scores(rule: Gumbel, raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return the scores `[n, A]` by which n inner nodes choose an action (equation 14): the largest is visited next.

    The score of action a is pi'(a) - N(a) / (1 + sum_b N(b)), where pi' is the improved policy and N counts visits.
    Actions with a prior of 0 have -inf.
    """
    share = visits * (1.0 / (1.0 + visits.sum(-1, keepdims=True)))
    return np.where(prior > 0.0, improved_policy(rule, raw_value, prior, visits, q) - share, -np.inf)


def root_scores(rule: Gumbel, base: Array, raw_value: Array, prior: Array, visits: Array, q: Array) -> Array:
    """Return noise + logits + sigma(completed values), `[n, A]`. `base` is the sum of the first two, `[n, A]`."""
    completed = completed_values(raw_value, prior, visits, q)
    return np.where(prior > 0.0, base + transformed(rule, completed, prior, visits)[0], -np.inf)


@lru_cache(maxsize=64)
def halving_table(considered: int, simulations: int) -> Array:
    """Return `halving` for 0 to `considered` actions, int32 `[considered + 1, simulations]`."""
    rows = [halving(num, simulations) for num in range(considered + 1)]
    return np.array(rows, np.int32).reshape(considered + 1, simulations)


def halving(considered: int, simulations: int) -> tuple[int, ...]:
    """Return the visits that the action of each simulation has to have, by sequential halving (figure 1 and mctx).

    Rounds of equal length halve the number of considered actions. In each round, they are visited equally often.
    """
    if considered <= 1:
        return tuple(range(simulations))
    rounds = math.ceil(math.log2(considered))
    visits, left, sequence = [0] * considered, considered, list[int]()
    while len(sequence) < simulations:
        for _ in range(max(1, simulations // (rounds * left))):
            sequence += visits[:left]
            visits[:left] = [num + 1 for num in visits[:left]]
        left = max(2, left // 2)
    return tuple(sequence[:simulations])
