"""Variants: the forms of an update, which depend on the size of the batch and on conditions on the counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from drl_cli.chains.counts import Path

Columns = Mapping[str, Tensor]


class Variant:
    """One form of an update: for one size of the batch, and for counts that give the same outcomes of conditions.

    `memory` has the tensors that the update uses and that existed before. `result` is what the update returned. `owner`
    is the algorithm. `records` counts how often this form was recorded.
    """

    def __init__(self, sizes: Any, path: Path, memory: Iterable[Tensor], result: Any, owner: Any) -> None:
        self.sizes, self.path, self.records, self._build = sizes, path, 1, builder(result)
        storages = {tensor.untyped_storage().data_ptr() for tensor in memory}
        own = [(name, x) for name, x in getattr(owner, "__dict__", {}).items() if isinstance(x, Tensor)]
        self._read = [(name, x) for name, x in own if x.untyped_storage().data_ptr() in storages]

    def result(self, outputs: Sequence[Tensor]) -> Any:
        """Return a result in the form of what the update returned, with `outputs` in place of its tensors."""
        return self._build(iter(outputs))

    def replaced(self, owner: Any) -> str | None:
        """Return the name of an attribute of the owner that now has another tensor than the update used, or None."""
        return next((name for name, tensor in self._read if getattr(owner, name) is not tensor), None)


V = TypeVar("V", bound=Variant)


def sizes_of(columns: Columns, first: int = 0) -> Any:
    """Return the sizes and strides of a batch's columns, which select a variant. Leave out the `first` dimensions."""
    return [(x.shape[first:], x.stride()[first:]) for x in columns.values()]


def find(variants: Sequence[V], sizes: Any, counts: Any) -> V | None:
    """Return the variant for a batch with these sizes and for these counts, or None if there is none."""
    for variant in variants:
        if variant.sizes == sizes and variant.path.allows(counts):
            return variant
    return None


def tensors_of(result: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples and dicts, in order."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple | dict):
        for part in result.values() if isinstance(result, dict) else result:
            yield from tensors_of(part)


def builder(result: Any) -> Callable[[Iterator[Tensor]], Any]:
    """Return a function that makes a result in the form of `result` (nested tuples and dicts) from other tensors."""
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
    """Return an object's numbers, strings, ids of tensors and lengths of containers, by the name of the attribute."""
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
    """Return the name of an attribute that has changed since `attributes` returned `before`, or None."""
    now = attributes(owner).items()
    return next((name for name, value in now if name in before and before[name] != value), None)
