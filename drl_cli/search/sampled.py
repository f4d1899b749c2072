"""Sampled actions for Box and large discrete spaces (Hubert et al. 2021, "Learning and planning in complex action
spaces", arXiv 2104.06303).

`Sampled` turns a model whose policy is any distribution into a model with K actions: the numbers of the K candidates
that each node draws from a proposal beta. The prior of a candidate is (share of the draws / beta) pi, normalised, so
that a search over candidates improves the policy pi, whatever beta is. A function `draw(policy, noise)` makes the
candidates `[B, K, ...]` and the logits of their prior `[B, K]` from the model's policy `[B, ...]` and a node's noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drl_cli.search.model import Embedding, Model

Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Sampled:
    """A model for `puct` and `gumbel` whose actions are numbers of candidates.

    `model` is as in model.py, with parameters of a distribution `[B, ...]` in place of logits; its actions are
    candidates `[B, ...]`. `noise` `[B, M, K, ...]` has the random numbers of M = simulations + 1 nodes. The candidates
    of the roots are the first tensor of `Found.root`.
    """

    def __init__(self, model: Model, draw: Draw, noise: Tensor) -> None:
        self._model, self._draw, self._noise = model, draw, noise
        self._first = torch.arange(noise.shape[0], device=noise.device) * noise.shape[2]
        self._node, self._is_tuple = 0, False

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:
        embedding, policy, value = self._model.root(obs)
        self._node, self._is_tuple = 0, isinstance(embedding, tuple)
        candidates, logits = self._draw(policy, self._noise[:, 0])
        return self._join(candidates, embedding), logits, value

    def recurrent(self, embedding: Embedding, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        candidates, *rest = embedding
        chosen = candidates.flatten(0, 1).index_select(0, self._first + action)
        inner = tuple(rest) if self._is_tuple else rest[0]
        reward, discount, policy, value, following = self._model.recurrent(inner, chosen)
        self._node += 1
        candidates, logits = self._draw(policy, self._noise[:, self._node])
        return reward, discount, logits, value, self._join(candidates, following)

    @staticmethod
    def _join(candidates: Tensor, embedding: Embedding) -> Embedding:
        return (candidates, *embedding) if isinstance(embedding, tuple) else (candidates, embedding)


def draw_tanh_gaussian(policy: Tensor, noise: Tensor, width: float = 1.0) -> tuple[Tensor, Tensor]:
    """Draw actions tanh(u) `[B, K, A]` with u from a Gaussian whose deviation is `width` times the policy's.

    `policy` `[B, 2 A]` is the mean and the logarithm of the deviation of u, and `noise` `[B, K, A]` is standard normal.
    """
    mean, log_std = policy.unsqueeze(1).chunk(2, -1)
    candidates = torch.addcmul(mean, log_std.exp() * width, noise).tanh()
    if width == 1.0:
        return candidates, noise.new_zeros(noise.shape[:2])
    return candidates, (math.log(width) - 0.5 * (width * width - 1.0) * noise.square()).sum(-1)


def draw_categorical(policy: Tensor, noise: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Draw choices int64 `[B, K]`, with replacement, with probabilities proportional to policy^(1 / temperature).

    `policy` `[B, N]` are logits, and `noise` `[B, K]` is uniform in [0, 1).
    """
    log_beta = (policy / temperature).log_softmax(-1)
    sums = log_beta.double().exp().cumsum(-1)
    choices = torch.searchsorted(sums, noise.double() * sums[:, -1:], right=True)
    log_ratio = (policy.log_softmax(-1) - log_beta).gather(-1, choices)
    return choices, merge(choices, log_ratio)


def merge(choices: Tensor, log_ratio: Tensor) -> Tensor:
    """Return the logits of drawn choices `[B, K]`: log(number of equal draws) + log(pi / beta).

    Only the first of equal draws counts. The others have -inf, so that no search selects them.
    """
    is_equal = choices.unsqueeze(-1) == choices.unsqueeze(-2)
    logits = is_equal.sum(-1).log() + log_ratio
    return logits.masked_fill(is_equal.tril(-1).any(-1), -torch.inf)
