"""Record: an update as a graph, with its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from drl_cli.chains.counts import Path


@dataclass(frozen=True)
class Draw:
    """Random numbers of an update: `operation(*args, **kwargs)`, or for an operation in place, of an empty `like`."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    like: tuple[tuple[int, ...], torch.dtype, torch.device] | None

    def __call__(self) -> Tensor:
        own = [] if self.like is None else [torch.empty(self.like[0], dtype=self.like[1], device=self.like[2])]
        drawn: Tensor = self.operation(*own, *self.args, **self.kwargs)
        return drawn


@dataclass(frozen=True)
class Record:
    """An update as a graph. Its placeholders are the storages, the batch, the scalars and the draws, in this order.

    `storages` are the captured tensors in one dimension. The graph's first outputs are the new values of the storages
    with the indices `written`, and the others are the tensors that were given to `Tape.record`. `examples` are tensors
    of the placeholders' sizes and types. `scalars` compute the scalars from the counts.
    """

    graph: fx.Graph
    storages: Sequence[Tensor]
    written: Sequence[int]
    scalars: Sequence[Callable[[Any], float]]
    draws: Sequence[Draw]
    examples: Sequence[Tensor]
    path: Path
    demands: bool

    def equals(self, other: Record) -> bool:
        """Return whether two records are the same program on the same memory, with equal constants."""
        if str(self.graph) != str(other.graph) or len(self.storages) != len(other.storages):
            return False
        return all(
            a.data_ptr() == b.data_ptr() or (i not in self.written and a.shape == b.shape and torch.equal(a, b))
            for i, (a, b) in enumerate(zip(self.storages, other.storages, strict=True))
        )
