"""What a search asks of a model, and the memory for the embeddings of the nodes."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

Embedding = Tensor | tuple[Tensor, ...]
"""The model's state of each tree `[B, ...]`, or a tuple of such tensors."""


class Model(Protocol):
    """A learned model of B environments. Rewards and values are in the reward's unit, and a search adds them up."""

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:  # Any: the search only passes observations on
        """Return the embedding `[B, ...]`, the logits of the policy `[B, A]`, and the value `[B]` of observations."""

    def recurrent(self, embedding: Embedding, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Embedding]:
        """Return the results of one action, int64 `[B]`, in each state. Both arguments are overwritten after the call.

        They are the reward `[B]`, the discount of what follows `[B]` (gamma, or 0 where the model predicts that the
        episode terminates), and the next state's logits `[B, A]`, value `[B]` and embedding.
        """


class Memory:
    """The embeddings of all nodes, one tensor `[B, M, ...]` for each tensor of an embedding."""

    def __init__(self, root: Embedding, nodes: int) -> None:
        self.is_tuple, self.parts = isinstance(root, tuple), parts_of(root)
        self.stores = [part.new_empty((part.shape[0], nodes, *part.shape[1:])) for part in self.parts]
        self._rows = [store.flatten(0, 1) for store in self.stores]
        self.put(0, root)

    def put(self, node: int, embedding: Embedding) -> None:
        """Store the embedding of one node of each tree. Raise ValueError if its shapes are not those of the root."""
        for store, part, first in zip(self.stores, parts_of(embedding), self.parts, strict=True):
            check_shape("embedding", part, first.shape)
            store[:, node] = part

    def take(self, rows: Tensor, action: Tensor) -> tuple[Embedding, Tensor]:
        """Return the embeddings of the rows b M + node, int64 `[B]`, and the actions, on the embeddings' device."""
        device = self.stores[0].device
        rows = rows.to(device)
        parts = [store.index_select(0, rows) for store in self._rows]
        return tuple(parts) if self.is_tuple else parts[0], action.to(device)


def parts_of(embedding: Embedding) -> tuple[Tensor, ...]:
    """Return the tensors of an embedding."""
    return embedding if isinstance(embedding, tuple) else (embedding,)


def check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError if what a model returned has another shape."""
    if x.shape != shape:
        raise ValueError(f"the model's {name} has the shape {[*x.shape]}, but the search needs {[*shape]}")
