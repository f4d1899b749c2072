"""A model whose `recurrent` is repeated as recorded operations or as compiled code, because a search calls it often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from drl_cli.chains.chain import Bound, Chain
from drl_cli.chains.program import InPlace
from drl_cli.chains.replays import Replays
from drl_cli.search.model import Embedding, Model, parts_of

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Embedding]


class Repeated:
    """The model, with `recurrent` called by a `Replays` or a `Chain`, which `repeat` makes.

        Repeated(model, lambda call: Replays(call, model))
        Repeated(model, lambda call: Chain(call, model, When("before")))

    The model's tensors have to stay at their places in memory, and `recurrent` must not depend on anything but its
    arguments and these tensors. Keep the object for many searches: each batch size is recorded once. `root` begins a
    search, in which all calls have the same sizes. Calls of `recurrent` may write their results into the same tensors.
    """

    def __init__(self, model: Model, repeat: Callable[[Callable[[Any, Any], Outputs]], Replays | Chain]) -> None:
        self._model, self._is_tuple = model, False
        self._call = repeat(self._recurrent)
        self._bound: Callable[[Sequence[Tensor]], Outputs] | None = None

    def root(self, obs: Any) -> tuple[Embedding, Tensor, Tensor]:
        self._bound = None
        return self._model.root(obs)

    def recurrent(self, embedding: Embedding, action: Tensor) -> Outputs:
        if self._bound is not None:
            return self._bound((action, *embedding) if self._is_tuple else (action, embedding))  # type: ignore[arg-type]
        self._is_tuple = isinstance(embedding, tuple)
        columns = {"action": action} | {str(i): part for i, part in enumerate(parts_of(embedding))}
        if isinstance(self._call, Chain) and (bound := self._call.bound(columns)) is not None:
            self._bound = bound
            return self.recurrent(embedding, action)
        outputs: Outputs = self._call(columns)
        self._bound = self._call.bound(columns)
        return outputs

    @property
    def program(self) -> InPlace | None:
        """The compiled model of the search that goes on, which writes its results into the same tensors, if any."""
        call = self._bound.call if isinstance(self._bound, Bound) else None
        return call if isinstance(call, InPlace) else None

    def _recurrent(self, columns: Any, counts: Any) -> Outputs:
        action, *parts = columns.values()
        return self._model.recurrent(tuple(parts) if self._is_tuple else parts[0], action)
