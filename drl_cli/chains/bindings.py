"""Bindings: finds faster functions for the operators of torch.

`torch.add(x, y)` takes half of the time of the operator `torch.ops.aten.add.Tensor(x, y)`. Most functions have the same
arguments as their operator. A function replaces its operator if both compute the same from copies of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

from drl_cli.chains import operations

_known: dict[Any, Any] = {}
"""The function to call in place of an operator, by operator and kinds of arguments."""


def binding(func: Any, args: Any, kwargs: Any) -> Callable[[Any], Any]:
    """Return a function `find(result)`, which returns the function to call in place of the operator `func`.

    Call `binding` before the operator runs, because the operator may change its arguments. Then call `find` with the
    operator's result.
    """
    leaves, form = tree_flatten((args, kwargs))
    key = func, str(form), tuple(map(type, leaves))
    candidate = None if key in _known else _candidate(func)
    if candidate is None:
        function = _known.setdefault(key, func)
        return lambda out: function
    with _disable_current_modes():  # copies, because an operator may change its arguments
        copies = tree_map_only(Tensor, Tensor.clone, (args, kwargs))

    def found(out: Any) -> Any:
        _known[key] = candidate if _computes(candidate, copies, (args, kwargs), out) else func
        return _known[key]

    return found


def _candidate(func: Any) -> Any:
    """Return torch's function or method with the operator's name, or None."""
    has_out = any(argument.is_out for argument in func._schema.arguments)
    if func.namespace != "aten" or has_out or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    name = func._schema.name.split("::")[1]
    places = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)
    return next((getattr(place, name) for place in places if hasattr(place, name)), None)


def _computes(candidate: Any, copies: Any, originals: Any, out: Any) -> bool:
    """Return whether the function `candidate` computes from copies of an operator's arguments what the operator did.

    `originals` are the operator's arguments, which it may have changed, and `out` is its result. The test compares the
    results, the changed arguments, and which results are views of an argument.
    """
    try:
        again = candidate(*copies[0], **copies[1])
    except (TypeError, RuntimeError, ValueError):
        return False
    ours, theirs = (tree_flatten(values)[0] for values in ((again, copies), (out, originals)))
    if len(ours) != len(theirs) or _views(again, copies) != _views(out, originals):
        return False
    return all(_are_equal(one, two) for one, two in zip(ours, theirs, strict=True))


def _views(results: Any, arguments: Any) -> list[bool]:
    """Return, for each tensor among the results, whether it shares the memory of an argument."""
    addresses = {operations.address(tensor) for tensor in operations.tensors(arguments)}
    return [operations.address(tensor) in addresses for tensor in operations.tensors(results)]


def _are_equal(one: Any, two: Any) -> bool:
    """Return whether two tensors have equal values, NaN at the same places; other objects need not be compared."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return not isinstance(one, Tensor) and not isinstance(two, Tensor)
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        return False
    return (
        torch.allclose(one, two, rtol=0.0, atol=0.0, equal_nan=True)
        if one.dtype.is_floating_point
        else torch.equal(one, two)
    )
