"""Record: an update as a graph, with its inputs."""

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

    `storages` are the captured tensors in one dimension. A tensor of which the update writes only some parts is divided
    into these parts. The graph's first outputs are the new values of the storages with the indices `written`, and the
    others are the tensors that were given to `Tape.record`. `examples` are tensors with the placeholders' sizes and
    types. `scalars` compute the scalars from the counts.
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


@dataclass(frozen=True)
class Storage:
    """A captured tensor in one dimension, its placeholder, and the pieces of it that an update writes."""

    flat: Tensor
    node: fx.Node
    changes: Sequence[Piece]

    def parts(self) -> list[tuple[int, int]]:
        """Return (start, end) of each part: each piece that the update writes, and the elements between them."""
        ends = {0, len(self.flat)} | {end for piece in self.changes for end in (piece.start, piece.stop)}
        return [*pairwise(sorted(ends))]


def in_parts(graph: fx.Graph, storages: Sequence[Storage], others: Sequence[fx.Node]) -> fx.Graph:
    """Return the graph with its placeholders in order: first the parts of the storages, then the others.

    An operation that read a slice of a storage now reads the placeholder of the part, so that a compiler can write to
    the part in place.
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
