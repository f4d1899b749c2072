"""Searches over sampled actions (Hubert et al. 2021, "Learning and planning in complex action spaces").

The paper is arXiv 2104.06303. A search needs a finite number of actions. `Sampled` therefore draws K candidate actions
in each node of a tree, and the search chooses the index of a candidate. If the candidates are drawn from a distribution
beta in place of the model's policy pi, the prior of a candidate is proportional to pi / beta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drl_cli.search.model import Embedding, Model

Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function of the model's policy `[B, P]` and of one node's noise `[B, K, ...]`.

It returns the candidates `[B, K, ...]` and the logits of their prior `[B, K]`.
"""


class Sampled:
    """A model for the searches `puct` and `gumbel`, whose actions are the indices of K candidates in each node.

    It wraps `model`, which takes candidates `[B, ...]` as actions, and returns parameters `[B, P]` of a distribution in
    place of logits. `draw` makes the candidates of a node. `noise` `[B, M, K, ...]` has the random numbers for the M
    nodes of B trees, where M is the number of simulations plus 1. A search returns the candidates of the roots
    `[B, K, ...]` as the first tensor of `Found.root`. An object counts the nodes, so it serves one search at a time.
    """

    def __init__(self, model: Model, draw: Draw, noise: Tensor) -> None:
        num_trees, _, num_candidates = noise.shape[:3]
        self._model, self._draw, self._noise = model, draw, noise
        self._first = torch.arange(num_trees, device=noise.device) * num_candidates  # index of each tree's candidate 0
        self._node, self._is_tuple = 0, False

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:
        embedding, policy, value = self._model.root(obs)
        self._node, self._is_tuple = 0, isinstance(embedding, tuple)
        candidates, logits = self._draw(policy, self._noise[:, 0])
        return self._join(candidates, embedding), logits, value

    def recurrent(self, embedding: Embedding, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        candidates, *rest = embedding  # `rest` is the embedding of the wrapped model
        chosen = candidates.flatten(0, 1).index_select(0, self._first + action)
        model_embedding = tuple(rest) if self._is_tuple else rest[0]
        reward, discount, policy, value, next_embedding = self._model.recurrent(model_embedding, chosen)
        self._node += 1
        candidates, logits = self._draw(policy, self._noise[:, self._node])
        return reward, discount, logits, value, self._join(candidates, next_embedding)

    @staticmethod
    def _join(candidates: Tensor, embedding: Embedding) -> Embedding:
        return (candidates, *embedding) if isinstance(embedding, tuple) else (candidates, embedding)


def draw_tanh_gaussian(policy: Tensor, noise: Tensor, width: float = 1.0) -> tuple[Tensor, Tensor]:
    """Draw K candidate actions tanh(u) in each of B states; return them, `[B, K, A]`, and their prior logits `[B, K]`.

    The policy's Gaussian of u has the means and the log standard deviations `policy` `[B, 2 A]`. The candidates come
    from a Gaussian whose standard deviation is `width` times as large. The logits are log(policy density / density of
    this Gaussian), which is 0 for width 1. `noise` `[B, K, A]` is standard normal.
    """
    mean, log_std = policy.unsqueeze(1).chunk(2, -1)
    candidates = torch.addcmul(mean, log_std.exp() * width, noise).tanh()
    if width == 1.0:
        return candidates, noise.new_zeros(noise.shape[:2])
    log_ratio = math.log(width) - 0.5 * (width * width - 1.0) * noise.square()  # of the densities, in each dimension
    return candidates, log_ratio.sum(-1)
