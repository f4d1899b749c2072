"""What an update returns, and what it may have changed in the object that it belongs to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


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


def own_tensors(owner: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors that are attributes of an object, with their names."""
    return [(name, value) for name, value in getattr(owner, "__dict__", {}).items() if isinstance(value, Tensor)]


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
