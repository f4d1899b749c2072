"""Models for searches: of fixed actions, of an update repeated in C++, and of sampled actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from drl_cli.chains.chain import Bound, Chain
from drl_cli.chains.program import InPlace
from drl_cli.chains.replays import Replays

Embedding = Tensor | tuple[Tensor, ...]
"""The model's states of one node in each of B trees: a tensor `[B, ...]`, or a tuple of such tensors."""


class Model(Protocol):
    """A learned model of B environments, for a tree search. Rewards and values must have the same unit."""

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:
        """Evaluate observations `[B, ...]`, the roots of B trees.

        Return the embedding (the model's states, `[B, ...]`), the logits of the policy `[B, A]`, and the value `[B]`.
        """

    def recurrent(self, embedding: Embedding, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        """Predict the results of one action, int64 `[B]`, in each of the B states `embedding`.

        Return the reward `[B]`, the discount of the next state's value `[B]` (gamma, or 0 if the model predicts that
        the episode terminates), and the next state's policy logits `[B, A]`, value `[B]` and embedding. The search
        later overwrites the tensors of both arguments, so the model must not keep them.
        """


class Memory:
    """Stores the embeddings of all nodes of B trees: one tensor `[B, M, ...]` for each tensor of an embedding.

    M is the maximum number of nodes of a tree.
    """

    def __init__(self, root: Embedding, nodes: int) -> None:
        self.is_tuple, self.parts = isinstance(root, tuple), parts_of(root)
        self.stores = [part.new_empty((part.shape[0], nodes, *part.shape[1:])) for part in self.parts]
        self._rows = [store.flatten(0, 1) for store in self.stores]
        self.put(0, root)

    def put(self, node: int, embedding: Embedding) -> None:
        """Store the embedding `[B, ...]` of the node with index `node` in each tree.

        Raise ValueError if the embedding has another shape than the embedding of the roots.
        """
        for store, part, first in zip(self.stores, parts_of(embedding), self.parts, strict=True):
            check_shape("embedding", part, first.shape)
            store[:, node] = part

    def take(self, rows: Tensor, action: Tensor) -> tuple[Embedding, Tensor]:
        """Return the embedding `[B, ...]` of one node of each tree, and `action`, both on the embeddings' device.

        `rows`, int64 `[B]`, are the indices b M + node of the nodes among the nodes of all trees.
        """
        device = self.stores[0].device
        rows = rows.to(device)
        parts = [store.index_select(0, rows) for store in self._rows]
        return tuple(parts) if self.is_tuple else parts[0], action.to(device)


def parts_of(embedding: Embedding) -> tuple[Tensor, ...]:
    """Return the tensors of an embedding as a tuple."""
    return embedding if isinstance(embedding, tuple) else (embedding,)


def check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError, with `name`, if the model's result `x` has another shape than `shape`."""
    if x.shape != shape:
        raise ValueError(f"the model's {name} has the shape {[*x.shape]}, but the search needs {[*shape]}")


Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Embedding]


class Repeated:
    """A model that makes `model.recurrent` faster: a search calls it once in each simulation, always with equal shapes.

    One of the first calls records the tensor operations. Later calls repeat them, either one by one (`Replays`) or as
    compiled code (`Chain`). `repeat` chooses which:

        Repeated(model, lambda call: Replays(call, model))
        Repeated(model, lambda call: Chain(call, model, When("before")))

    The model's parameters have to stay at the same addresses in memory, and `recurrent` must depend only on them and on
    its arguments. Keep one object for many searches, because each batch size is recorded once. A call of `recurrent`
    may overwrite the results of the call before.
    """

    def __init__(self, model: Model, repeat: Callable[[Callable[[Any, Any], Outputs]], Replays | Chain]) -> None:
        self._model, self._is_tuple = model, False
        self._call = repeat(self._recurrent)
        self._bound: Callable[[Sequence[Tensor]], Outputs] | None = None  # repeats the record of this search's shapes

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:
        self._bound = None  # a new search may have other shapes
        return self._model.root(obs)

    def recurrent(self, embedding: Embedding, action: Tensor) -> Outputs:
        if self._bound is not None:
            return self._bound((action, *embedding) if self._is_tuple else (action, embedding))  # type: ignore[arg-type]
        # The first call of a search: find or make the record for these shapes. `Replays` has to make this call itself,
        # because it counts its calls and checks the record from time to time. `Chain` does not need to.
        self._is_tuple = isinstance(embedding, tuple)
        columns = {"action": action} | {str(i): part for i, part in enumerate(parts_of(embedding))}
        bound = self._call.bound(columns) if isinstance(self._call, Chain) else None
        if bound is not None:  # compiled code is ready
            self._bound = bound
            return self.recurrent(embedding, action)
        outputs: Outputs = self._call(columns)
        self._bound = self._call.bound(columns)  # for the next calls of this search, if a record exists now
        return outputs

    @property
    def program(self) -> InPlace | None:
        """The compiled `recurrent` of the current search, or None if the search does not use compiled code.

        Each call of the compiled code writes its results into the same tensors.
        """
        call = self._bound.call if isinstance(self._bound, Bound) else None
        return call if isinstance(call, InPlace) else None

    def _recurrent(self, columns: Any, counts: Any) -> Outputs:
        """Call the model with a dict of tensors, as `Replays` and `Chain` do. `counts` is not used."""
        action, *parts = columns.values()
        return self._model.recurrent(tuple(parts) if self._is_tuple else parts[0], action)


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
