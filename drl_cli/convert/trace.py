"""Record the tensor operations of a function as a list of calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from drl_cli.types import Array

READS = ("numpy", "tolist", "__array__", "__dlpack__")
"""Functions with which Python reads the values of a tensor. The other functions that do so call an operation."""


class NotConverted(Exception):
    """Raised if a policy has no numpy form. The message gives the reason."""


class Value(NamedTuple):
    """The tensor that `Trace.facts` describes at this position."""

    at: int


class Rows(NamedTuple):
    """An integer that is `factor` times the number of rows."""

    factor: int


@dataclass(frozen=True)
class Fact:
    """A tensor of a trace.

    `kind` is "input", "weight" (a view of the parameter vector that begins at the element `start`), "constant" or
    "result" (of a call). `name` is that of an input. `shape` and `stride` contain `Rows`.
    """

    kind: str
    tensor: Tensor
    shape: tuple[int | Rows, ...]
    dtype: torch.dtype
    name: str = ""
    start: int = 0
    array: Array | None = None

    @classmethod
    def of(cls, kind: str, tensor: Tensor, **more: Any) -> "Fact":  # Any: the other fields
        return cls(kind, tensor, tuple(tensor.shape), tensor.dtype, **more)

    @property
    def cells(self) -> Array:
        """The elements of the storage that the tensor has."""
        cells = np.array([self.tensor.storage_offset()])
        for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True):
            cells = (cells[:, None] + stride * np.arange(size)).ravel()
        return cells

    def overlaps(self, other: "Fact") -> bool:
        """Whether a change of this tensor changes the other tensor."""
        is_same = _storage(self.tensor) == _storage(other.tensor)
        return is_same and len(np.intersect1d(self.cells, other.cells)) > 0


@dataclass(frozen=True)
class Call:
    """An operation of torch, or a call `rng.op(...)` of the policy's generator. `writes` are arguments that it changes.

    `args` has all arguments by name, with default values. In `args` and `results`, tensors are `Value`s.
    """

    op: str
    args: Mapping[str, Any]  # Any: values, numbers, torch's types, and lists of these
    results: tuple[Value | None, ...]
    defaults: Mapping[str, Any]  # Any: as `args`
    writes: tuple[str, ...] = ()

    @property
    def is_draw(self) -> bool:
        return self.op.startswith("rng.")


@dataclass(frozen=True)
class Trace:
    """The calls of a function, and its results by name."""

    calls: Sequence[Call]
    outputs: Mapping[str, Value]
    facts: Sequence[Fact]


def record(
    function: Callable[[], Mapping[str, Tensor]],
    inputs: Mapping[str, Tensor],
    weights: Sequence[Tensor],
    rng: "Draws",
) -> Trace:
    """Call a function of these inputs, of weights that are pieces of the parameter vector, and of a generator."""
    recorder = _Recorder(inputs, weights)
    rng._recorder = recorder
    has_fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # because its LSTM is one operation
    try:
        with torch.no_grad(), _NoReads(), recorder:
            outputs = function()
    finally:
        torch._C._set_mkldnn_enabled(has_fused)
        rng._recorder = None
    results = {name: recorder.value(tensor) for name, tensor in outputs.items()}
    if recorder.drawn:
        raise NotConverted("a random number is used outside of torch")
    return Trace(recorder.calls, results, recorder.facts)


class Draws(np.random.Generator):
    """A random generator whose draws become calls of a trace while `record` runs."""

    _recorder: "_Recorder | None" = None

    def __getattribute__(self, name: str) -> Any:  # Any: of any attribute
        method, recorder = super().__getattribute__(name), super().__getattribute__("_recorder")
        if recorder is None or name.startswith("_") or name == "bit_generator":
            return method

        def draw(*args: Any, **kwargs: Any) -> Any:  # Any: as the method's
            array = method(*args, **kwargs)
            if not isinstance(array, np.ndarray):
                raise NotConverted(f"rng.{name} returns {type(array).__name__}, not an array")
            recorder.draw(f"rng.{name}", {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}, array)
            return array

        return draw


class _NoReads(TorchFunctionMode):
    """Refuses functions that read a tensor's values, because a program can't know what Python does with the values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        if getattr(func, "__name__", "") in READS:
            raise NotConverted(f"Python reads a tensor's values: Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Notes every operation that is called while this mode is active."""

    def __init__(self, inputs: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.facts: list[Fact] = []
        self.drawn: dict[int, Array] = {}  # random numbers that torch does not know yet, by the index of their call
        self._values: dict[int, Value] = {}
        starts = np.cumsum([0, *(piece.numel() for piece in weights)]).tolist()
        self._weights = list(zip(weights, starts, strict=False))
        for name, tensor in inputs.items():
            self._new(Fact.of("input", tensor, name=name))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        schema, kwargs = func._schema, kwargs or {}
        names = [argument.name for argument in schema.arguments]
        defaults = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        writes = tuple(e.name for e in schema.arguments if e.alias_info and e.alias_info.is_write and e.name in given)
        bound = {name: self._noted(value) for name, value in {**defaults, **given}.items()}
        out = func(*args, **kwargs)
        outs = out if isinstance(out, tuple | list) else (out,)
        results = tuple(self._result(each) if isinstance(each, Tensor) else None for each in outs)
        self.calls.append(Call(schema.name.split("::")[1], bound, results, defaults, writes))
        return out

    def draw(self, op: str, args: Mapping[str, Any], array: Array) -> None:  # Any: shapes, types, numbers
        """Note a draw. Its result will be the tensor that torch makes of the array."""
        self.drawn[len(self.calls)] = array
        self.calls.append(Call(op, args, (), {}))

    def value(self, tensor: Tensor) -> Value:
        """Return the value of a tensor. A tensor that no call has returned is a view of a weight, or a constant."""
        if (known := self._values.get(id(tensor))) is not None:
            return known
        for i, array in self.drawn.items():
            if tensor.data_ptr() == array.ctypes.data and tensor.shape == array.shape and tensor.is_contiguous():
                del self.drawn[i]
                value = self._new(Fact.of("result", tensor))
                self.calls[i] = replace(self.calls[i], results=(value,))
                return value
        for piece, start in self._weights:
            offset = tensor.storage_offset() - piece.storage_offset()
            if _storage(tensor) == _storage(piece) and 0 <= offset < max(piece.numel(), 1):
                return self._new(Fact.of("weight", tensor, start=start + offset))
        if any(_storage(fact.tensor) == _storage(tensor) for fact in self.facts if fact.kind != "constant"):
            raise NotConverted("a view of a tensor was made outside of torch's operations")
        with torch._C.DisableTorchFunction():
            return self._new(Fact.of("constant", tensor, array=tensor.detach().numpy().copy()))

    def _new(self, fact: Fact) -> Value:
        value = self._values[id(fact.tensor)] = Value(len(self.facts))
        self.facts.append(fact)
        return value

    def _result(self, tensor: Tensor) -> Value:
        known = self._values.get(id(tensor))
        return self._new(Fact.of("result", tensor)) if known is None else known

    def _noted(self, value: Any) -> Any:  # Any: an argument
        if isinstance(value, Tensor):
            return self.value(value)
        return [self._noted(each) for each in value] if isinstance(value, list | tuple) else value


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
