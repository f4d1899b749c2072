"""A model whose `recurrent` is repeated as recorded operations or as compiled code, because a search calls it often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from drl_cli.search.model import Embedding, Model

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Embedding]
Repeat = Callable[[Callable[[Any, Any], Outputs]], Callable[[Any], Outputs]]  # Any: columns and counts, as in chains


class Repeated:
    """The model, with `recurrent` called by `chains.replays.Replays` or `chains.chain.Chain`.

        Repeated(model, lambda call: Replays(call, model))
        Repeated(model, lambda call: Chain(call, model, When("before")))

    The model's tensors have to stay at their places in memory, and `recurrent` must not depend on anything but its
    arguments and these tensors. Keep the object for many searches: each batch size is recorded once.
    """

    def __init__(self, model: Model, repeat: Repeat) -> None:
        self._model, self._is_tuple, self.root = model, False, model.root
        self._call = repeat(self._recurrent)

    def recurrent(self, embedding: Embedding, action: Tensor) -> Outputs:
        self._is_tuple = isinstance(embedding, tuple)
        parts = embedding if isinstance(embedding, tuple) else (embedding,)
        return self._call({"action": action} | {str(i): part for i, part in enumerate(parts)})

    def _recurrent(self, columns: Any, counts: Any) -> Outputs:
        action, *parts = columns.values()
        return self._model.recurrent(tuple(parts) if self._is_tuple else parts[0], action)
