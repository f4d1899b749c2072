"""Facts about torch's operations: which tensors they change, and their variants without side effects."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


def address(tensor: Tensor) -> int:
    """Return a number for the storage of a tensor. Two tensors with the same number share memory."""
    return int(tensor.untyped_storage()._cdata)


def tensors(values: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and dicts."""
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, values)
    return found


def written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an operation changes."""
    found: list[Any] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += value if isinstance(value, list | tuple) else [] if value is None else [value]
    return found


def has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Return whether one of the indices is a mask. The number of elements that a mask selects depends on its values."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def functional(func: Any) -> Any:
    """Return the variant of an operation that changes no tensor, such as `add` for `add_`, or None if there is none."""
    name = func._schema.name.split("::")[1]
    namespace = getattr(torch.ops, func.namespace)
    packet = getattr(namespace, name.removesuffix("_"), None) if name.endswith("_") else getattr(namespace, name)
    if packet is None:
        return None
    outs = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write and a.is_out}
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if a.name not in outs]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
            continue
        if [(a.name, str(a.type)) for a in arguments] == wanted:
            return candidate
    return None


def line() -> str:
    """Return the file and line of the running code, without the functions of torch and of this folder."""
    skipped = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(skipped):
            return f"{frame.filename}:{frame.lineno}"
    return "?"
