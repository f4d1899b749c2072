"""Variants: the forms of an update, what it returns, and what it may have changed in the object that it belongs to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from drl_cli.chains.counts import Path

Columns = Mapping[str, Tensor]


class Variant:
    """One form of an update: for one size of the batch, and one path of conditions on the counts.

    `memory` are the tensors that existed before the update. `records` counts how often the form was recorded.
    """

    def __init__(self, sizes: Any, path: Path, memory: Iterable[Tensor], result: Any, owner: Any) -> None:
        self.sizes, self.path, self.records, self._build = sizes, path, 1, builder(result)
        storages = {tensor.untyped_storage().data_ptr() for tensor in memory}
        own = [(name, x) for name, x in getattr(owner, "__dict__", {}).items() if isinstance(x, Tensor)]
        self._read = [(name, x) for name, x in own if x.untyped_storage().data_ptr() in storages]

    def result(self, outputs: Sequence[Tensor]) -> Any:
        """Return what the update returned, with `outputs` in place of its tensors."""
        return self._build(iter(outputs))

    def replaced(self, owner: Any) -> str | None:
        """Return an attribute of the owner whose tensor the update read and which has another tensor now, or None."""
        return next((name for name, tensor in self._read if getattr(owner, name) is not tensor), None)


V = TypeVar("V", bound=Variant)


def sizes_of(columns: Columns, first: int = 0) -> Any:
    """Return the sizes and strides of a batch, which select a variant, without the `first` dimensions."""
    return [(x.shape[first:], x.stride()[first:]) for x in columns.values()]


def find(variants: Sequence[V], sizes: Any, counts: Any) -> V | None:
    """Return the variant for a batch of these sizes and these counts, or None."""
    for variant in variants:
        if variant.sizes == sizes and variant.path.allows(counts):
            return variant
    return None


def tensors_of(result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result, in tuples and dicts, in order."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple | dict):
        for part in result.values() if isinstance(result, dict) else result:
            yield from tensors_of(part)


def builder(result: Any) -> Callable[[Iterator[Tensor]], Any]:
    """Return a function that makes a result like this one from other tensors."""
    if isinstance(result, Tensor):
        return next
    if not isinstance(result, tuple | dict) or next(tensors_of(result), None) is None:
        return lambda tensors: result
    if isinstance(result, dict):
        by_name = [(name, builder(part)) for name, part in result.items()]
        return lambda tensors: {name: build(tensors) for name, build in by_name}
    builders = [builder(part) for part in result]
    return lambda tensors: tuple([build(tensors) for build in builders])


def attributes(owner: Any) -> dict[str, Any]:
    """Return an object's numbers, words, tensors and sizes of containers by attribute, to notice a change."""
    plain = (int, float, bool, str, type(None))
    found: dict[str, Any] = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, Tensor):
            found[name] = id(value)
        elif isinstance(value, plain):
            found[name] = value
        elif isinstance(value, list | dict | set | deque):
            found[name] = len(value)
    return found


def changed(owner: Any, before: Mapping[str, Any]) -> str | None:
    """Return an attribute that differs from what `attributes` returned before, or None."""
    now = attributes(owner).items()
    return next((name for name, value in now if name in before and before[name] != value), None)
