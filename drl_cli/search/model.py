"""The interface of a model that a tree search calls, and the memory for the model's states in all nodes."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

Embedding = Tensor | tuple[Tensor, ...]
"""The model's states of one node in each of B trees: a tensor `[B, ...]`, or a tuple of such tensors."""


class Model(Protocol):
    """A learned model of B environments, for a tree search. Rewards and values must have the same unit."""

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: the search only passes observations on
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
