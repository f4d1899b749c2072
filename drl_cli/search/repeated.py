"""Repeated: a model for searches that replays recorded tensor operations in place of running its Python code."""

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
