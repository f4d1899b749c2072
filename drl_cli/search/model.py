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
        """Return the results of one action, int64 `[B]`, in each state.

        They are the reward `[B]`, the discount of what follows `[B]` (gamma, or 0 where the model predicts that the
        episode terminates), and the next state's logits `[B, A]`, value `[B]` and embedding.
        """


class Memory:
    """The embeddings of all nodes, one tensor `[B, M, ...]` for each tensor of an embedding."""

    def __init__(self, root: Embedding, nodes: int) -> None:
        self._is_tuple = isinstance(root, tuple)
        parts = root if isinstance(root, tuple) else (root,)
        stores = [part.new_empty((part.shape[0], nodes, *part.shape[1:])) for part in parts]
        self._rows = [store.flatten(0, 1) for store in stores]
        self._slots = [store.unbind(1) for store in stores]
        self.device = parts[0].device
        self.is_near = self.device.type == "cpu"
        self.put(0, root)

    def put(self, node: int, embedding: Embedding) -> None:
        """Store the embedding of one node of each tree."""
        parts = embedding if isinstance(embedding, tuple) else (embedding,)
        for slots, part in zip(self._slots, parts, strict=True):
            slots[node].copy_(part)

    def take(self, rows: Tensor) -> Embedding:
        """Return the embeddings of the rows b M + node, int64 `[B]`."""
        if self._is_tuple:
            return tuple([store.index_select(0, rows) for store in self._rows])
        return self._rows[0].index_select(0, rows)
