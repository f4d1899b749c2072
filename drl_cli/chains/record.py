"""Record: an update as a graph, with its inputs."""

from __future__ import annotations

import math
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


def drawn(draws: Sequence[Draw], num: int) -> list[Tensor]:
    """Return the random numbers of `num` updates, `[num, ...]` for each draw, in the order in which updates draw them.

    If all draws are of one kind, one draw makes them. 64 x 4 numbers alone take three times as long as in a larger one.
    """
    if (lengths := _mergeable(draws)) is not None:
        flat = draws[0].operation([num, sum(lengths)], **draws[0].kwargs)
        parts = zip(flat.split(lengths, 1), draws, strict=True)
        return [part.unflatten(1, draw.args[0]) for part, draw in parts]
    rows = [[draw() for draw in draws] for _ in range(num)]
    return [torch.stack(values) for values in zip(*rows, strict=True)]


def _mergeable(draws: Sequence[Draw]) -> list[int] | None:
    """Return how many numbers each draw makes, if one draw after another makes the same numbers as a single draw.

    torch's normal distribution fills a tensor in groups of 16 numbers.
    """
    if not draws or draws[0].operation not in (aten.randn.generator, aten.rand.generator):
        return None
    if any((draw.operation, draw.kwargs) != (draws[0].operation, draws[0].kwargs) for draw in draws):
        return None
    lengths = [math.prod(draw.args[0]) for draw in draws]
    return None if any(len(draw.args) > 1 for draw in draws) or any(n % 16 for n in lengths) else lengths


Effect = Callable[[Tensor], None]
"""A function that changes a tensor by a message to other trainers."""


@dataclass(frozen=True)
class Record:
    """An update as a graph. Its placeholders are the storages, the batch, the scalars and the draws, in this order.

    With `effects`, the last outputs are the tensors that the effects change, and the last placeholders are the same
    tensors afterwards. Such a graph has to be cut (`drl_cli.chains.cut`).

    `storages` are the captured tensors in one dimension, divided into the parts that are written alone. The graph's
    first outputs are the new values of the storages with the indices `written`, and the others are the tensors that
    were given to `Tape.record`, with the sizes and types `results`. `examples` are tensors of the placeholders' sizes
    and types. `scalars` compute the scalars from the counts.
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
