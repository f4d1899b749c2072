"""Memory: knows which node of a graph has the present content of a storage, while an update is recorded.

A tensor is a view of a storage. Operations change tensors in place, but the nodes of a graph never change. Therefore
every write makes a new node, and later reads of the storage use this node. Some storages, such as the flat gradient,
are written in pieces, such as one for each layer. A Memory has a node for each piece, so that no write copies the whole
storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, fx

aten = torch.ops.aten


class Geometry(NamedTuple):
    """The shape of a tensor and the place of its elements in its storage. Strides and offset count elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Geometry:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    @property
    def length(self) -> int:
        return math.prod(self.size)

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class Piece(NamedTuple):
    """The elements from `start` to `stop` of a storage. `node` has their values in this order, in any shape.

    `is_new` is True if the update has written these elements.
    """

    start: int
    stop: int
    node: fx.Node
    is_new: bool


class Recipe(NamedTuple):
    """Makes the node of a view from the node of another view of the same storage: `make(node of the view source)`."""

    source: Geometry
    make: Callable[[fx.Node], fx.Node]


class Unreadable(Exception):
    """A view of a storage cannot be computed from the nodes that have the storage's content."""


class Memory:
    """The present content of one storage, as nodes of a graph. `call(operator, *arguments)` adds a node."""

    def __init__(self, call: Callable[..., fx.Node], geometry: Geometry, node: fx.Node) -> None:
        self._call, self._whole = call, geometry
        self._recipes: dict[Geometry, Recipe] = {}
        self._set(geometry, node, is_new=False)

    def _set(self, geometry: Geometry, node: fx.Node, is_new: bool) -> None:
        self._nodes = {geometry: node}
        start = geometry.offset
        self.pieces = [Piece(start, start + geometry.length, node, is_new)] if geometry.is_contiguous else []

    def add(self, geometry: Geometry, node: fx.Node) -> None:
        """Add elements of the storage that no other node has. `node` has the values of the view `geometry`."""
        self._nodes[geometry] = node
        piece = Piece(geometry.offset, geometry.offset + geometry.length, node, is_new=False)
        self.pieces = sorted([*self.pieces, piece], key=_start)

    def remember(self, geometry: Geometry, recipe: Recipe) -> None:
        """Note how the view `geometry` can be made again, in case it is read after a later write."""
        if geometry != self._whole:
            self._recipes.setdefault(geometry, recipe)

    def read(self, geometry: Geometry) -> fx.Node:
        """Return a node with the present values of the view `geometry`. Raise Unreadable if this is not possible."""
        if geometry not in self._nodes:
            can_be_cut = geometry.is_contiguous and self.pieces
            recipe = None if can_be_cut else self._recipes.get(geometry)
            self._nodes[geometry] = self._cut(geometry) if recipe is None else recipe.make(self.read(recipe.source))
        return self._nodes[geometry]

    def write(self, geometry: Geometry, node: fx.Node) -> None:
        """Note that the update has written the values of `node` to the view `geometry`."""
        if geometry == self._whole:
            self._set(geometry, node, is_new=True)
            return
        if not geometry.is_contiguous:
            if dense_and_order := _dense(geometry):
                dense, order = dense_and_order
                self.write(dense, self._call(aten.permute.default, node, order))
            else:
                self._scatter(geometry, node)
            return
        start, stop = geometry.offset, geometry.offset + geometry.length
        pieces = [Piece(start, stop, node, is_new=True)]
        for piece in self._present():
            if piece.start < start:
                pieces.append(self._part(piece, piece.start, min(piece.stop, start)))
            if piece.stop > stop:
                pieces.append(self._part(piece, max(piece.start, stop), piece.stop))
        self._nodes = {geometry: node}
        self.pieces = sorted(pieces, key=_start)

    def flat(self) -> fx.Node:
        """Return the content of the whole storage in one dimension."""
        return self._join(self._whole.offset, self._whole.offset + self._whole.length)

    def changes(self) -> list[Piece]:
        """Return the pieces that the update has written, with nodes of one dimension."""
        return [self._part(piece, piece.start, piece.stop) for piece in self.pieces if piece.is_new]

    def _scatter(self, geometry: Geometry, node: fx.Node) -> None:
        """Write to a view with gaps between its elements, such as a column."""
        size, stride, offset = self._within(geometry)
        flat = self._call(aten.as_strided_scatter.default, self.flat(), node, size, stride, offset)
        start = self._whole.offset
        self._nodes, self.pieces = {geometry: node}, [Piece(start, start + self._whole.length, flat, is_new=True)]

    def _within(self, geometry: Geometry) -> tuple[list[int], list[int], int]:
        return [*geometry.size], [*geometry.stride], geometry.offset - self._whole.offset

    def _present(self) -> list[Piece]:
        if not self.pieces:
            raise Unreadable(f"a view of a tensor with strides {self._whole.stride}")
        return self.pieces

    def _cut(self, geometry: Geometry) -> fx.Node:
        if geometry.is_contiguous:
            node = self._join(geometry.offset, geometry.offset + geometry.length)
            return node if len(geometry.size) == 1 else self._call(aten.view.default, node, list(geometry.size))
        if (dense_and_order := _dense(geometry)) is None:
            return self._call(aten.as_strided.default, self.flat(), *self._within(geometry))
        dense, order = dense_and_order
        return self._call(aten.permute.default, self.read(dense), [order.index(i) for i in range(len(order))])

    def _join(self, start: int, stop: int) -> fx.Node:
        parts = [
            self._part(piece, max(piece.start, start), min(piece.stop, stop))
            for piece in self._present()
            if piece.start < stop and start < piece.stop
        ]
        if sum(part.stop - part.start for part in parts) != stop - start:
            raise Unreadable("a view of elements that were not part of the update's inputs")
        nodes = [part.node for part in parts]
        return nodes[0] if len(nodes) == 1 else self._call(aten.cat.default, nodes)

    def _part(self, piece: Piece, start: int, stop: int) -> Piece:
        flat = self._call(aten.view.default, piece.node, [-1])
        if (start, stop) != (piece.start, piece.stop):
            flat = self._call(aten.slice.Tensor, flat, 0, start - piece.start, stop - piece.start)
        return Piece(start, stop, flat, piece.is_new)


def _start(piece: Piece) -> int:
    return piece.start


def _dense(geometry: Geometry) -> tuple[Geometry, list[int]] | None:
    """Permute the dimensions of a view so that its elements are in the order of the storage.

    Return the permuted view and the order of dimensions for `permute`. Return None if there are gaps between the
    elements.
    """
    size, stride, offset = geometry
    order = sorted(range(len(size)), key=lambda i: -stride[i])
    dense = Geometry(tuple(size[i] for i in order), tuple(stride[i] for i in order), offset)
    return (dense, order) if dense.is_contiguous else None
