"""Record: an update as a graph of tensor operations, with the graph's inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor, fx

from drl_cli.chains.counts import Path
from drl_cli.chains.memory import Piece

aten = torch.ops.aten


@dataclass(frozen=True)
class Draw:
    """Draws random numbers of an update: calls `operation(*args, **kwargs)`.

    An operation that works in place gets an empty tensor as its first argument. `like` is (size, type, device) of this
    tensor.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    like: tuple[tuple[int, ...], torch.dtype, torch.device] | None

    def __call__(self) -> Tensor:
        own = [] if self.like is None else [torch.empty(self.like[0], dtype=self.like[1], device=self.like[2])]
        drawn: Tensor = self.operation(*own, *self.args, **self.kwargs)
        return drawn


def drawn(draws: Sequence[Draw], num: int) -> list[Tensor]:
    """Return the random numbers of `num` updates, `[num, ...]` for each draw. The updates draw them in order."""
    rows = [[draw() for draw in draws] for _ in range(num)]
    return [torch.stack(values) for values in zip(*rows, strict=True)]


Effect = Callable[[Tensor], None]
"""A function that changes a tensor by a message to other trainers."""


@dataclass(frozen=True)
class Record:
    """An update as a graph of tensor operations.

    The graph's inputs (placeholders) are, in this order:

    - `storages`: tensors that existed before the update, such as parameters, in one dimension. A storage of which the
      update writes only pieces is divided at the ends of these pieces.
    - the columns of the batch
    - `scalars`: functions that compute numbers, such as a learning rate, from the counts
    - `draws`: random numbers

    The graph's first outputs are the new contents of the storages with the indices `written`. The other outputs are the
    tensors that were given to `Tape.record`, with the sizes and types `results`. `examples` are tensors with the
    placeholders' sizes and types. `path` has the conditions on the counts. If `demands` is True, the last of the
    results is False if the update has to be undone.

    If there are `effects` (messages to other trainers), the last outputs are the tensors that the effects change, and
    the last placeholders are the same tensors afterwards. Such a graph has to be cut (`drl_cli.chains.cut`).
    """

    graph: fx.Graph
    storages: Sequence[Tensor]
    written: Sequence[int]
    scalars: Sequence[Callable[[Any], float]]
    draws: Sequence[Draw]
    examples: Sequence[Tensor]
    results: Sequence[tuple[torch.Size, torch.dtype]]
    path: Path
    demands: bool
    effects: Sequence[Effect] = ()

    def equals(self, other: Record) -> bool:
        """Return whether two records have the same graph, use the same memory, and have equal constants."""
        if str(self.graph) != str(other.graph) or len(self.storages) != len(other.storages):
            return False
        return all(
            a.data_ptr() == b.data_ptr() or (i not in self.written and a.shape == b.shape and torch.equal(a, b))
            for i, (a, b) in enumerate(zip(self.storages, other.storages, strict=True))
        )


@dataclass(frozen=True)
class Storage:
    """A tensor that existed before an update, in one dimension; its placeholder; the pieces that the update writes."""

    flat: Tensor
    node: fx.Node
    changes: Sequence[Piece]

    def parts(self) -> list[tuple[int, int]]:
        """Divide the storage at the ends of the pieces that the update writes; return (start, end) of each part."""
        ends = {0, len(self.flat)} | {end for piece in self.changes for end in (piece.start, piece.stop)}
        return [*pairwise(sorted(ends))]


def in_parts(graph: fx.Graph, storages: Sequence[Storage], others: Sequence[fx.Node]) -> fx.Graph:
    """Return a graph that has a placeholder for each part of a storage, in place of one for the whole storage.

    The placeholders of the parts come first, and those of `others` follow. An operation that read a slice of a storage
    now reads the placeholder of the part. So a compiler can write to the part in place.
    """
    new, known = fx.Graph(), dict[fx.Node, fx.Node]()
    names = (f"x{i}" for i in count())
    placed = [[(*ends, new.placeholder(next(names))) for ends in storage.parts()] for storage in storages]
    known |= {node: new.placeholder(next(names)) for node in others}
    whole = {storage.node: parts for storage, parts in zip(storages, placed, strict=True)}
    for node, parts in whole.items():
        nodes = [part for *_, part in parts]
        known[node] = nodes[0] if len(nodes) == 1 else new.call_function(aten.cat.default, (nodes,))
    for node in graph.nodes:
        if node in known:
            continue
        if node.target is aten.view.default and node.args[0] in whole and node.args[1] == [-1]:
            whole[node] = whole[node.args[0]]
        if node.target is aten.slice.Tensor and node.args[0] in whole and len(node.args) == 4:
            start, stop = node.args[2:]
            for first, end, part in whole[node.args[0]]:
                if first <= start and stop <= end:
                    same = (first, end) == (start, stop)
                    cut = (part, 0, start - first, stop - first)
                    known[node] = part if same else new.call_function(aten.slice.Tensor, cut)
        if node not in known:
            known[node] = new.node_copy(node, lambda node: known[node])
    new.eliminate_dead_code()
    return new
